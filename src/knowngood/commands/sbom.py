"""`knowngood sbom ID`: a cell's bill of materials, from what is committed; no engine and no network."""

from __future__ import annotations

import argparse

from knowngood import project
from knowngood.cli import Answer
from knowngood.errors import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "cell", metavar="ID", nargs="?", default="default", help="a cell id or an alias (the alias default)"
    )
    parser.add_argument("--format", choices=["cyclonedx-json"], default="cyclonedx-json", help="(default: %(default)s)")
    parser.add_argument(
        "--refresh-licences",
        action="store_true",
        help="read the licences of all locked wheels from the index, and no more",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Print the document."""
    import json

    from knowngood import select
    from knowngood.publishing import release

    here = project.find()
    if arguments.refresh_licences:
        return _refresh(here)
    cells = select.select(here.matrix.cells, here.matrix.aliases, [arguments.cell])
    if len(cells) != 1:
        raise UsageError(f"{arguments.cell!r} selects {len(cells)} cells; name one")
    text = release.bill(here, cells[0])
    return Answer(0, json.loads(text), text.rstrip("\n"))


def _refresh(here: project.Project) -> Answer:
    from knowngood import progress
    from knowngood.publishing import licences

    locks = [locked for cell in here.matrix.cells if (locked := here.tree.load(cell))]
    wheels = {item.sha256: item for locked in locks for item in locked.distributions}
    with progress.reporter("licences") as say:
        known, changed = licences.refresh(here.root, list(wheels.values()), say)
    done = "written" if changed else "unchanged"
    text = f"{known} of {len(wheels)} wheels name a licence; {licences.path(here.root)} {done}"
    return Answer(0, {"wheels": len(wheels), "named": known, "changed": changed}, text)
