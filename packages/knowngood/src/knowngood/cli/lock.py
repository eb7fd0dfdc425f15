"""`knowngood lock [SELECT]`: resolve cells to distributions that are pinned by hash."""

from __future__ import annotations

import argparse

from knowngood.base import base_image
from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.core.formatting import format_table
from knowngood.lock import cell_locking, wheelhouse
from knowngood.project import core_facts
from knowngood.project.cell_answers import split_broken_cells
from knowngood.project.checkout import Project, find_checkout, find_project
from knowngood.registry import bill_of_materials, wheel_supply


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)
    shared_arguments.add_locked(parser)
    parser.add_argument(
        "--upgrade", action="store_true", help="resolve again, even if nothing that the lock follows from changed"
    )
    parser.add_argument("--base", metavar="NAME", help="renew the locked Debian packages of a base instead of cells")
    parser.add_argument(
        "--licences",
        action="store_true",
        help="only read from the index which licences the locked wheels name, into docker/licences.json",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Lock the selected cells. A cell that fails does not stop the others."""
    project = find_project() if arguments.locked else find_checkout("locks into docker/")
    matrix = project.matrix
    if arguments.base:
        shared_arguments.refuse_options(
            arguments, ("select", "locked", "upgrade"), "does nothing with --base, which locks no cell"
        )
        return _lock_base(project, arguments.base)
    if arguments.licences:
        shared_arguments.refuse_options(
            arguments, ("select", "locked", "upgrade"), "does nothing with --licences, which locks no cell"
        )
        return _refresh_licences(project)
    rows: list[list[str]] = []
    document: list[dict[str, object]] = []
    code = 0
    cells = matrix.select_cells(arguments.select)
    _, broken = split_broken_cells(project, cells, renew=True)
    for cell in cells:
        name = str(cell)
        try:
            if name in broken:
                raise broken[name]
            with report_progress(name) as notify:
                wheel_folder = wheelhouse.wheelhouse_folder()
                wheel_supply.supply_wheels(project, [cell], wheel_folder, notify)
                locked = cell_locking.lock_cell(
                    matrix.entry(cell),
                    cell_locking.LockingPlace(
                        matrix=matrix,
                        tree=project.tree,
                        wheel_folder=wheel_folder,
                        cxx11abi=core_facts.load_torch_cxx11abi,
                        locked_only=arguments.locked,
                        notify=notify,
                    ),
                    upgrade=arguments.upgrade,
                )
        except KnowngoodError as error:
            code = code or error.exit_code
            rows.append([name, "failed", str(error)])
            document.append({"id": name, "status": "failed", "error": str(error)})
            continue
        status = "changed" if locked.changed else "current"
        size = sum(item.size for item in locked.lock.distributions)
        rows.append([name, status, f"{len(locked.lock.distributions)} distributions, {size / 1e9:.2f} GB of wheels"])
        document.append({"id": name, "status": status, "lock": locked.lock.digest, "bytes": size})
    if not arguments.select and not code:
        with cell_locking.hold_lock_folder(project.tree):
            document += [{"removed": path.name} for path in project.tree.prune(matrix.cells)]
    return Answer(code, document, format_table(["cell", "lock", ""], rows))


def _lock_base(project: Project, name: str) -> Answer:
    if name not in project.matrix.bases:
        raise UsageError(f"{name!r} is not in matrix.yaml's bases; they are {', '.join(project.matrix.bases)}")
    with report_progress(f"base {name}") as notify:
        context = base_image.prepare_base(project, name, locked=False, notify=notify, refresh=True)
    path = base_image.packages_lock_path(project, name).relative_to(project.root)
    return Answer(0, {"base": name, "context": context, "lock": str(path)}, f"{path}: {context.rpartition('@')[2]}")


def _refresh_licences(project: Project) -> Answer:
    locks = [locked for cell in project.matrix.cells if (locked := project.tree.load(cell))]
    wheels = {item.sha256: item for locked in locks for item in locked.distributions}
    with report_progress("licences") as notify:
        known, changed = bill_of_materials.refresh_licences(project.root, list(wheels.values()), notify)
    state = "written" if changed else "unchanged"
    text = f"{known} of {len(wheels)} wheels name a licence; {bill_of_materials.licences_path(project.root)} {state}"
    return Answer(0, {"wheels": len(wheels), "named": known, "changed": changed}, text)
