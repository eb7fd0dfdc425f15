"""Why libraries do not go together: two releases in one process, a crash, a missing one, a killed compiler. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.message_causes import MessageCause, shorten_text
from knowngood_diagnose.failures.names.name_situation import advise, describe_failure
from knowngood_facts.compat.incident import Incident, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.last_errors import LastError

_KILLED = lazy_pattern(r"(?m)^[ \t]*Killed[ \t]*$")


def explain_killed_compiler(error: LastError) -> MessageCause | None:
    """Return the lack of memory for which the kernel ended a compiler; `None` where none was ended."""
    text = error.log_end.decode("utf-8", "replace")
    killed = _KILLED.search(text)
    if killed is None:
        return None
    incident = describe_failure(
        "build-reason",
        IncidentKind.SOURCE_BUILD,
        OwnComponent.HOST_MEMORY,
        title="A compiler was killed while it built: the machine's memory was full",
        because="Between the commands of the build stands Killed: the kernel ended a compiler for want of memory. "
        "Kernels such as those of flash-attn take several GB each, and ninja starts a compiler for each processor.",
        fixes=[
            advise("MAX_JOBS=2 (or 1) and NVCC_THREADS=1 before the build"),
            advise("More memory or swap; or a ready wheel"),
        ],
        source="the shell's message of a program that ended by SIGKILL",
    )
    return MessageCause(incident=incident, line=error.line, package="")


_CLASH = lazy_pattern(
    r"(?P<path>[^\s'\"()]{0,300}/(?P<file>lib[\w.+-]+\.so[\w.]*)): (?:undefined symbol: (?P<name>\w{1,300}), version "
    r"|symbol (?P<other>\w{1,300}),? version )(?P<needed>lib[\w+-]+\.so[\w.]*)"
)
_FRAME = lazy_pattern(
    r"(?:^|\] |\s)\[? ?\d+\]? +(?P<path>/\S{1,300}?/)?(?P<file>lib[\w.+-]+\.so[\w.]*)\(|(?:#\d+\s.{0,200}? "
    r"(?:from|in) )(?P<from>\S{1,300}\.so[\w.]*)"
)
_OF_C = lazy_pattern(r"^(?:libc|libpthread|libstdc\+\+|libgcc_s|libm|libdl|libpython\S*|ld-linux\S*)[.-]")
_SYSTEM = ("/usr/local/cuda", "/usr/lib", "/lib/", "/opt/")
_OWNERS = (
    (lazy_pattern(r"libnccl"), "nccl"),
    (lazy_pattern(r"libcuda\.so|libnvidia"), "driver"),
    (lazy_pattern(r"libtorch|libc10"), "torch"),
    (lazy_pattern(r"libcudnn|libcublas|libcusparse|libcusolver|libcufft|libnvrtc|libcudart"), "cuda"),
    (lazy_pattern(r"libbitsandbytes"), "bitsandbytes"),
    (lazy_pattern(r"libtriton"), "triton"),
)


def describe_clash(incident: Incident, error: LastError) -> Incident | None:
    """Which library asks for what another one lacks, and from which folder the first was loaded."""
    stated = _CLASH.search(error.log_end.decode("utf-8", "replace"))
    if stated is None:
        return None
    path, needed = stated["path"], stated["needed"]
    symbol = shorten_text(stated["name"] or stated["other"], 60)
    of_wheels = "/nvidia/" in path or "/torch/lib" in path
    of_system = path.startswith(_SYSTEM) and not of_wheels
    if of_system:
        because = (
            f"{path} was loaded, which is not that of torch's own wheels: LD_LIBRARY_PATH or the linker's list has "
            f"its folder. It and the {needed} that is loaded already are of two releases."
        )
    else:
        because = (
            f"{path} asks {needed} for {symbol}. The {needed} that the loader found first is another one, of an older "
            "toolkit in LD_LIBRARY_PATH, of conda, of the system, or loaded by another package (TensorFlow) before."
        )
    return replace(incident.tell("clash", file=stated["file"], needed=needed, symbol=symbol), because=because)


_BUILT_FOR = lazy_pattern(
    r"xFormers was built for:\s*(?:\S+ STDERR: *)?PyTorch (?P<wanted>\d[\w.+]*) with CUDA \S+ \(you have "
    r"(?P<there>\d[\w.+]*)\)"
)


def describe_xformers(incident: Incident, error: LastError) -> Incident | None:
    """Which torch xformers was built for, and which is there; `None` where its warning does not say."""
    text = re.sub(r"(?m)^[\w ]{3,40} STDERR: ?", "", error.log_end.decode("utf-8", "replace"))
    stated = _BUILT_FOR.search(text)
    if stated is None or stated["wanted"] == stated["there"]:
        return None
    of_cpu = stated["there"].endswith("+cpu")
    wanted = stated["wanted"].partition("+")[0]
    fix = (
        (
            f"pip install torch=={wanted} --index-url of torch's index for CUDA "
            f"({stated['wanted'].partition('+')[2]}), after pip uninstall torch"
        )
        if of_cpu
        else (
            f"The xformers built for torch {stated['there']}, in one command with torch; or torch=={wanted} for "
            "this one"
        )
    )
    return replace(
        incident,
        title=f"xformers was built for torch {stated['wanted']}, and {stated['there']} is installed",
        component="torch" if of_cpu else "xformers",
        because=(
            f"The warning states both. {'This torch is a build for CPUs, without CUDA. ' if of_cpu else ''}An "
            "extension of torch is loaded only by the very release it was built with; without it xformers has no "
            "kernels, and callers fall back or fail later."
        ),
        fix=(advise(fix), *incident.fix[1:]),
    )


def describe_crash(incident: Incident, error: LastError) -> Incident | None:
    """In which library a process crashed, where the log has the frames of the crash."""
    text = error.log_end.decode("utf-8", "replace")
    for match in _FRAME.finditer(text):
        file = match["file"] or match["from"].rpartition("/")[2]
        if _OF_C.match(file):
            continue
        owner = next((name for pattern, name in _OWNERS if pattern.search(file)), "")
        path = f"{match['path'] or ''}{file}" if match["file"] else match["from"]
        return replace(
            incident,
            title=f"The process crashed inside of {file}",
            kind=IncidentKind.FAILS_INSIDE,
            component=owner or incident.component,
            because=(
                f"The innermost frame of the crash that is not of the C library is in {path}. Either that "
                "library has a defect that this "
                "machine or these inputs show, or it is another release than the one with which its callers were built."
            ),
            fix=(
                advise(
                    f"Another release of {file}, and only one of it in the process: ldd, and LD_LIBRARY_PATH "
                    "unset (torch's wheels bring their own)"
                ),
                *incident.fix[:2],
            ),
        )
    return None


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
                "export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH under WSL; elsewhere the folder that find "
                "/ -name 'libcuda.so*' shows, and ldconfig"
            ),
            advise(f"ln -s libcuda.so.1 {file} in that folder, when only the file with the number is there"),
            advise("In a container: --gpus all and the nvidia-container-toolkit"),
        ),
    )
