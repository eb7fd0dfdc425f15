"""The packs of kernels on this machine, one file each in the cache folder, and what this machine is. An edge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.launch.kernel_pack import (
    NO_GPU,
    KernelMachine,
    KernelPack,
    parse_cpu_flags,
    parse_kernel_pack,
    slug_machine,
)

if TYPE_CHECKING:
    from knowngood.engine.probe_gpus import NvidiaState


def kernel_folder() -> Path:
    """Return the folder of the packs."""
    return cache_folder() / "kernels"


def describe_machine(nvidia: NvidiaState) -> KernelMachine:
    """Return what this machine is to compiled kernels. Of several kinds of GPU the first counts."""
    try:
        flags = parse_cpu_flags(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        flags = ()
    if not nvidia.gpus:
        return KernelMachine(gpu=NO_GPU, cpu_flags=flags)
    gpu = nvidia.gpus[0]
    return KernelMachine(gpu=gpu.name, capability=gpu.sm, driver=nvidia.driver or "", cpu_flags=flags)


def save_kernel_pack(pack: KernelPack) -> Path:
    """Store a pack in place of an earlier one for the same image and GPU, and return its file."""
    path = kernel_folder() / pack.name
    write_atomically(path, pack.data)
    return path


def load_kernel_pack(image: str, gpu: str) -> KernelPack | None:
    """Return the pack for the image with this digest and a GPU; `None` when there is none.

    Raises `KnowngoodError` when its file is damaged.
    """
    path = kernel_folder() / f"{image.removeprefix('sha256:')[:12]}-{slug_machine(gpu)}.tar.xz"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return parse_kernel_pack(data, str(path))
