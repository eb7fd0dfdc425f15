"""What the environment is: versions, GPU, driver, architectures compiled in, hashes of the kernel
binaries.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

KERNEL_BINARIES = (
    "flash_attn_2_cuda*.so",
    "flash_attn_3_cuda*.so",
    "flash_attn_3/*.so",
    "flash_attn/cute/*_fwd*.py",
    "flash_attn/cute/*_bwd*.py",
    "torch/lib/libtorch_cuda.so",
    "nvidia/cudnn/lib/libcudnn.so.*",
    "triton/_C/libtriton.so",
)


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """The worker's first task: describe what torch and transformers are here. Raises where they do not
    import.
    """
    import torch
    import transformers

    del check
    report["environment"] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "arch_list": torch.cuda.get_arch_list() if torch.cuda.is_available() else _compiled_for(torch),
        **_gpu(torch),
    }


def _compiled_for(torch: Any) -> list[str]:
    """get_arch_list() is empty without a GPU; the flags that it reads are there all the same."""
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return flags.split() if flags else []


def _gpu(torch: Any) -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"gpu": None, "sm": None, "gpu_count": 0, "gpu_memory": None}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "sm": f"sm_{properties.major}{properties.minor}",
        "gpu_count": torch.cuda.device_count(),
        "gpu_memory": properties.total_memory,
    }


def static() -> dict[str, Any]:
    """What can be told without importing torch."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "distributions": distributions(),
        "kernel_files": kernel_files(),
    }


def distributions() -> dict[str, str]:
    """Every installed distribution by its normalised name; the first on the path is the one that imports."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return dict(sorted(found.items()))


def kernel_files() -> dict[str, str]:
    """The sha256 of each file that holds attention kernels, by its path below the import path."""
    found: dict[str, str] = {}
    for entry in map(Path, filter(None, sys.path)):
        for pattern in KERNEL_BINARIES:
            for file in sorted(entry.glob(pattern)) if entry.is_dir() else ():
                found.setdefault(str(file.relative_to(entry)), _sha256(file))
    return found


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def suite_hash(folder: Path = Path(__file__).parent) -> str:
    """One hash over the suite's own files, names and bytes, so that evidence names the suite that wrote
    it.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".py", ".json", ".toml", ".md") and "__pycache__" not in file.parts:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
