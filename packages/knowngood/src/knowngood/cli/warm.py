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
    from knowngood.project.release_signers import ReleaseSigner
    from knowngood.registry.registry_client import Registry

_LONGEST_PROBLEM = 90


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    run_cell.add_optional_select(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--from", dest="origin", metavar="REPOSITORY", help="get a pack that was attached to the image there"
    )
    what.add_argument(
        "--to", metavar="REPOSITORY", help="attach the pack to the image there; it is compiled if there is none yet"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Make, fetch or push a pack of kernels."""
    project, cell, machine = _choose_cell(arguments)
    if arguments.origin:
        pack = _fetch(project, cell, machine, arguments)
    elif arguments.to:
        return _push(project, cell, machine, arguments)
    else:
        pack = _make(project, cell, machine)
    path = kernel_store.save_kernel_pack(pack)
    size = f"{len(pack.files)} files, {format_bytes(len(pack.data))}"
    return Answer(0, {**pack.document(), "path": str(path)}, f"{_seconds_text(pack)}\n{path}: {size}")


def _choose_cell(arguments: argparse.Namespace) -> tuple[Project, Cell, KernelMachine]:
    """Return the project, the cell that is selected or the best one, and this machine.

    Raises `KnowngoodError` when the cell is for another GPU than this machine has.
    """
    chosen = run_cell.choose_cell_for_machine(arguments.select)
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


def _recorded_image(project: Project, cell: Cell) -> str:
    """Return the digest of a cell's image; raises `KnowngoodError` for a cell that has no record."""
    record = project.tree.load_record(cell)
    if record is None:
        raise KnowngoodError(
            f"{cell} has no record of an image, so nothing in a registry belongs to it; build it first"
        )
    return record.manifest.digest


def _fetch(project: Project, cell: Cell, machine: KernelMachine, arguments: argparse.Namespace) -> KernelPack:
    from knowngood.launch import kernel_sharing
    from knowngood.project.release_signers import load_release_verifiers

    registry, verifiers = (
        _open_registry(arguments.origin),
        load_release_verifiers(project.root, project.matrix.publish),
    )
    pack = kernel_sharing.fetch_kernel_pack(registry, _recorded_image(project, cell), machine.gpu, verifiers)
    if pack is None:
        signed = f" signed with {' or '.join(item.name for item in verifiers)}" if verifiers else ""
        raise KnowngoodError(f"{registry.repository} has no kernels{signed} for {cell} on {machine.gpu}")
    return pack


def _push(project: Project, cell: Cell, machine: KernelMachine, arguments: argparse.Namespace) -> Answer:
    from knowngood.launch import kernel_sharing

    registry, signer = _open_registry(arguments.to), _find_signer(project)
    pack = kernel_store.load_kernel_pack(_recorded_image(project, cell), machine.gpu)
    if pack is None:
        pack = _make(project, cell, machine)
        kernel_store.save_kernel_pack(pack)
    digest = kernel_sharing.push_kernel_pack(registry, pack, signer)
    document = {**pack.document(), "reference": f"{registry.repository}@{digest}", "signed": signer is not None}
    state = "signed" if signer else "unsigned"
    return Answer(0, document, f"{_seconds_text(pack)}\n{registry.repository}@{digest}: attached to its image, {state}")


def _find_signer(project: Project) -> ReleaseSigner | None:
    from knowngood.project import release_signers

    named = release_signers.load_release_verifiers(project.root, project.matrix.publish)
    return release_signers.find_release_signer(None, named)


def _open_registry(repository: str) -> Registry:
    from knowngood.registry.image_reference import Repository
    from knowngood.registry.registry_client import Registry

    return Registry(Repository.parse(repository))


def _seconds_text(pack: KernelPack) -> str:
    rows = []
    for name, values in pack.seconds.items():
        cold, warm = (f"{values[key]:.1f} s" if key in values else "-" for key in ("cold", "warm"))
        rows.append([name, cold, warm, str(values.get("problem", ""))[:_LONGEST_PROBLEM]])
    return f"{pack.cell} on {pack.machine.gpu}\n" + format_table(["first step of", "cold", "warm", ""], rows)
