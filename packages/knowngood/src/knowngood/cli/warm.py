"""`knowngood engine warm [SELECT]`: compile a cell's kernels on this machine's GPU once, and keep them for `run`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from knowngood.cli import run_cell
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import KnowngoodError
from knowngood.core.formatting import format_bytes, format_table
from knowngood.launch import kernel_store

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.launch.kernel_pack import KernelMachine, KernelPack
    from knowngood.project.checkout import Project

_LONGEST_PROBLEM = 90


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    run_cell.add_optional_select(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Make a pack of kernels, and keep it."""
    project, cell, machine = _choose_cell(arguments)
    pack = _make(project, cell, machine)
    path = kernel_store.save_kernel_pack(pack)
    size = f"{len(pack.files)} files, {format_bytes(len(pack.data))}"
    return Answer(0, {**pack.document(), "path": str(path)}, f"{_seconds_text(pack)}\n{path}: {size}")


def _choose_cell(arguments: argparse.Namespace) -> tuple[Project, Cell, KernelMachine]:
    """Return the project, the cell that is selected or the best one, and this machine.

    Raises `KnowngoodError` when the cell is for another GPU than this machine has.
    """
    from knowngood.engine import container_engine

    engine = container_engine.find_running_engine(builds=False)
    chosen = run_cell.choose_cell_for_machine(run_cell.CellRequest(select=arguments.select), engine)
    cell, machine = chosen.choice.cell, kernel_store.describe_machine(chosen.nvidia)
    if machine.capability and machine.capability != cell.gpu:
        raise KnowngoodError(
            f"{cell} is for {cell.gpu}, and this machine has {machine.gpu} ({machine.capability}); kernels are "
            "compiled on the GPU that they are for"
        )
    return chosen.project, cell, machine


def _make(project: Project, cell: Cell, machine: KernelMachine) -> KernelPack:
    """Compile the kernels of a cell in its image, which is pulled or built where it is not here."""
    from knowngood.engine import container_engine
    from knowngood.launch import image_access, warm_up

    with report_progress(str(cell)) as notify:
        engine = container_engine.ensure_engine(notify=notify, builds=False)
        image = image_access.find_recorded_image(project, cell, engine, notify)
        image = image or image_access.fetch_cell_image(project, cell, engine, notify, notify)
        digest = image_access.name_recorded_image(project, cell, image.digest)
        return warm_up.make_kernel_pack(cell, image.name, digest, machine, engine, notify)


def _seconds_text(pack: KernelPack) -> str:
    rows = []
    for name, values in pack.seconds.items():
        cold, warm = (f"{values[key]:.1f} s" if key in values else "-" for key in ("cold", "warm"))
        rows.append([name, cold, warm, str(values.get("problem", ""))[:_LONGEST_PROBLEM]])
    return f"{pack.cell} on {pack.machine.gpu}\n" + format_table(["first step of", "cold", "warm", ""], rows)
