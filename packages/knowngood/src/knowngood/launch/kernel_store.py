"""The packs of kernels on this machine, one file each in the cache folder, and how they come to a run. An edge.

A run never needs them: what prevents it is said, and the program compiles its kernels itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.errors import KnowngoodError
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.core.notify import Notify
from knowngood.launch.kernel_pack import (
    NO_GPU,
    KernelMachine,
    KernelPack,
    parse_cpu_flags,
    parse_kernel_pack,
    slug_machine,
)

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.engine.container_engine import Engine
    from knowngood.engine.probe_gpus import NvidiaState
    from knowngood.launch.container_run import ContainerRun
    from knowngood.launch.image_access import RunnableImage
    from knowngood.project.checkout import Project


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


def deliver_kernels(  # noqa: PLR0913, PLR0917
    project: Project,
    cell: Cell,
    image: RunnableImage,
    engine: Engine,
    run: ContainerRun,
    nvidia: NvidiaState,
    say: Notify,
) -> None:
    """Put the kernels that are known for a cell's image and this GPU into the cache volume of a run.

    `say` gets what was done, or why nothing was.
    """
    from knowngood.launch import image_access

    machine = describe_machine(nvidia)
    digest = image_access.name_recorded_image(project, cell, image.digest)
    try:
        pack = load_kernel_pack(digest, machine.gpu)
        if pack is None:
            return
        if misfit := pack.describe_misfit(machine):
            say(f"its compiled kernels are not used: {misfit}")
            return
        from knowngood.launch import warm_up  # few runs get here

        if warm_up.fill_cache_volume(engine, run, pack):
            say(f"{len(pack.files)} files of compiled kernels for {machine.gpu} are in its cache now")
    except KnowngoodError as error:
        say(f"its compiled kernels are not used: {error}")
