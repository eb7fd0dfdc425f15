"""`knowngood lock [SELECT]`: cells to hash-pinned distributions."""

from __future__ import annotations

import argparse

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    common.add_wheelhouse(parser)
    common.add_locked(parser)
    parser.add_argument("--upgrade", action="store_true", help="resolve again though nothing asked for it changed")
    parser.add_argument(
        "--base", metavar="NAME", help="renew the Debian packages of a base instead, from what the mirror serves now"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Lock the selected cells; a cell that fails does not stop the others."""
    from knowngood import progress, select, table
    from knowngood.errors import KnowngoodError
    from knowngood.locks import locking, wheelhouse

    here = project.find()
    matrix = here.matrix
    if arguments.base:
        return _lock_base(here, arguments.base)
    rows: list[list[str]] = []
    document: list[dict[str, object]] = []
    code = 0
    for cell in select.select(matrix.cells, matrix.aliases, arguments.select):
        name = str(cell)
        try:
            with progress.reporter(name) as say:
                locked = locking.lock_cell(
                    matrix.entry(cell),
                    matrix,
                    here.tree,
                    house=wheelhouse.folder(arguments.wheelhouse),
                    cxx11abi=project.cxx11abi,
                    upgrade=arguments.upgrade,
                    locked_only=arguments.locked,
                    say=say,
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
        with locking.writing(here.tree):
            document += [{"removed": path.name} for path in here.tree.prune(matrix.cells)]
    return Answer(code, document, table.text(["cell", "lock", ""], rows))


def _lock_base(here: project.Project, name: str) -> Answer:
    from knowngood import progress
    from knowngood.errors import UsageError
    from knowngood.system import bases

    if name not in here.matrix.bases:
        raise UsageError(f"{name!r} is not in matrix.yaml's bases; they are {', '.join(here.matrix.bases)}")
    if here.matrix.bases[name].image:
        raise UsageError(f"base {name!r} is an image by digest; it has no packages to lock")
    with progress.reporter(f"base {name}") as say:
        context = bases.context(here, name, locked=False, say=say, refresh=True)
    path = bases.lock_path(here, name).relative_to(here.root)
    return Answer(0, {"base": name, "context": context, "lock": str(path)}, f"{path}: {context.rpartition('@')[2]}")
