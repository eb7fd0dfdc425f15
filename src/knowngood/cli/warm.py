"""`knowngood warm [SELECT]`: compile a cell's kernels on this machine's GPU once, and keep them for `run`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import KnowngoodError
from knowngood.core.formatting import format_bytes, format_table
from knowngood.launch import kernel_store

if TYPE_CHECKING:
    from knowngood.launch.kernel_pack import KernelPack


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "select",
        nargs="?",
        metavar="SELECT",
        help="a cell id, an alias, a glob or an axis filter (default: the best cell for this machine's GPU)",
    )
    parser.add_argument("--list", action="store_true", help="list the packs of this machine, and compile nothing")
    shared_arguments.add_insecure(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Make a pack of kernels, or list those that are here; exit 1 when a setting of the cell did not train."""
    if arguments.list:
        shared_arguments.refuse_options(arguments, ("select", "insecure"), "does nothing with --list")
        packs = kernel_store.list_kernel_packs()
        return Answer(0, {"packs": [pack.document() for pack in packs]}, _list_text(packs))
    pack = _make(arguments)
    path = kernel_store.save_kernel_pack(pack)
    document = {**pack.document(), "path": str(path)}
    return Answer(
        0, document, f"{_seconds_text(pack)}\n{path}: {len(pack.files)} files, {format_bytes(len(pack.data))}"
    )


def _make(arguments: argparse.Namespace) -> KernelPack:
    """Compile the kernels of the selected cell in its image, which is pulled or built where it is not here."""
    from knowngood.compat import knowledge
    from knowngood.doctor import probe_gpus
    from knowngood.engine import container_engine
    from knowngood.launch import image_access, run_choice, warm_up
    from knowngood.project.checkout import find_project

    project, nvidia = find_project(), probe_gpus.read_nvidia_state()
    cells = project.matrix.select_cells([arguments.select]) if arguments.select else []
    known = knowledge.load_knowledge()
    cell = run_choice.choose_run_cell(known, nvidia, cells, gpu=run_choice.ANY_GPU, attn=None).cell
    machine = kernel_store.describe_machine(nvidia)
    if machine.capability and machine.capability != cell.gpu:
        raise KnowngoodError(
            f"{cell} is for {cell.gpu}, and this machine has {machine.gpu} ({machine.capability}); kernels are "
            "compiled on the GPU that they are for"
        )
    with report_progress(str(cell)) as notify:
        engine = container_engine.ensure_engine(notify=notify, builds=False)
        image = image_access.find_recorded_image(project, cell, engine, notify)
        image = image or image_access.fetch_cell_image(
            project, cell, engine, notify, notify, insecure=arguments.insecure
        )
        return warm_up.make_kernel_pack(cell, image, machine, engine, notify)


def _seconds_text(pack: KernelPack) -> str:
    rows = []
    for name, values in pack.seconds.items():
        cold, warm = (f"{values[key]:.1f} s" if key in values else "-" for key in ("cold", "warm"))
        rows.append([name, cold, warm, str(values.get("problem", ""))])
    return f"{pack.cell} on {pack.machine.gpu}\n" + format_table(["first step of", "cold", "warm", ""], rows)


def _list_text(packs: list[KernelPack]) -> str:
    if not packs:
        return "there are no packs of kernels; `knowngood warm` makes one"
    rows: list[list[Any]] = [
        [pack.cell, pack.machine.gpu, pack.made, format_bytes(len(pack.data)), pack.sha256[:12]] for pack in packs
    ]
    return format_table(["cell", "GPU", "made", "size", "sha256"], rows)
