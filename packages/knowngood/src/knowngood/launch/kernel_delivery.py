"""Bringing the kernels that were compiled on this machine to a run.

A run never needs them: what prevents it is said, and the program compiles its kernels itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.core.errors import KnowngoodError
from knowngood.core.notify import Notify
from knowngood.launch import image_access, kernel_store

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.engine.container_engine import Engine
    from knowngood.engine.probe_gpus import NvidiaState
    from knowngood.launch.container_run import ContainerRun
    from knowngood.launch.image_access import RunnableImage
    from knowngood.project.checkout import Project


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
    machine = kernel_store.describe_machine(nvidia)
    digest = image_access.name_recorded_image(project, cell, image.digest)
    try:
        pack = kernel_store.load_kernel_pack(digest, machine.gpu)
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
