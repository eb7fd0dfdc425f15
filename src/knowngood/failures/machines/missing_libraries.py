"""Which library the loader misses, whose it is, and which wheel brings it. Pure.

The line may name two: one that could not be loaded, and, behind "Error:", the one that it wants itself.
"""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import Incident, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_MISSING = lazy_pattern(r"(?P<file>lib[\w+-]+\.so(?:\.[\d.]*\d)?): cannot open shared object file")
_WSL = lazy_pattern(r"\bWSL\b|microsoft-standard|/mnt/[a-z]/", re.IGNORECASE)
_WHEELS = (
    (lazy_pattern(r"^libcudnn"), "nvidia-cudnn-cu12 (-cu13)"),
    (lazy_pattern(r"^libnccl"), "nvidia-nccl-cu12 (-cu13)"),
    (lazy_pattern(r"^libcusparseLt"), "nvidia-cusparselt-cu12 (-cu13)"),
    (lazy_pattern(r"^libcublas"), "nvidia-cublas-cu12 (nvidia-cublas for CUDA 13)"),
    (lazy_pattern(r"^libcusparse"), "nvidia-cusparse-cu12 (nvidia-cusparse for CUDA 13)"),
    (lazy_pattern(r"^libcusolver"), "nvidia-cusolver-cu12 (nvidia-cusolver for CUDA 13)"),
    (lazy_pattern(r"^libcurand"), "nvidia-curand-cu12 (nvidia-curand for CUDA 13)"),
    (lazy_pattern(r"^libcufft"), "nvidia-cufft-cu12 (nvidia-cufft for CUDA 13)"),
    (lazy_pattern(r"^libnvrtc"), "nvidia-cuda-nvrtc-cu12 (nvidia-cuda-nvrtc for CUDA 13)"),
    (lazy_pattern(r"^libcudart"), "nvidia-cuda-runtime-cu12 (nvidia-cuda-runtime for CUDA 13)"),
    (lazy_pattern(r"^libnvJitLink"), "nvidia-nvjitlink-cu12 (nvidia-nvjitlink for CUDA 13)"),
)


def describe_missing_library(incident: Incident, error: LastError) -> Incident | None:
    """Name the library that is missing; `None` where the log does not name one of a known owner."""
    files = [match["file"] for match in _MISSING.finditer(error.log_end.decode("utf-8", "replace"))]
    if not files:
        return None
    file = files[-1]
    if re.match(r"libcuda\.so|libnvidia-", file):
        return _describe_driver_library(incident, error, file)
    wheel = next((name for pattern, name in _WHEELS if pattern.match(file)), "")
    if not wheel:
        return None
    return replace(
        incident,
        title=f"{file} is not where the loader looks",
        because=f"{incident.because} Here it is {file}, which the wheel {wheel} has.",
        fix=(
            *incident.fix[:2],
            advise(
                f"pip install the wheel {wheel} whose library has that number, and LD_LIBRARY_PATH to its folder "
                "site-packages/nvidia/*/lib, when the binary cannot be exchanged"
            ),
        ),
    )


def _describe_driver_library(incident: Incident, error: LastError, file: str) -> Incident:
    of_wsl = bool(_WSL.search(error.log_end.decode("utf-8", "replace")))
    return replace(
        incident,
        title=f"The driver's library {file} is not where the loader looks",
        component=OwnComponent.DRIVER,
        because=(
            f"{file} comes with the driver and with no wheel. "
            + ("Under WSL it lies in /usr/lib/wsl/lib. " if of_wsl else "Under WSL it lies in /usr/lib/wsl/lib; ")
            + (
                "a container gets it from the host when it is started with a GPU. What asked for it (cuDNN, "
                "Triton) is whole."
            )
        ),
        fix=(
            advise(
                "export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH under WSL; elsewhere the folder "
                "that find / -name "
                "'libcuda.so*' shows, and ldconfig"
            ),
            advise(f"ln -s libcuda.so.1 {file} in that folder, when only the file with the number is there"),
            advise("In a container: --gpus all and the nvidia-container-toolkit"),
        ),
    )
