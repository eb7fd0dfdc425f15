"""`knowngood export ID --format FORMAT`: a cell's lock for tools other than Docker."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.errors import UsageError
from knowngood.locks.exports import Format

if TYPE_CHECKING:
    from knowngood.locks.tree import CellLock


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "cell", metavar="ID", nargs="?", default="default", help="a cell id or an alias (the alias default)"
    )
    parser.add_argument(
        "--format", default="requirements", choices=[str(item) for item in Format], help="(default: %(default)s)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="(default: standard output)")
    parser.add_argument("--image", metavar="IMAGE", help="the published image, for apptainer and devcontainer")


def run(arguments: argparse.Namespace) -> Answer:
    """Write the lock in that form."""
    from knowngood import select
    from knowngood.atomic import write_text
    from knowngood.locks import exports
    from knowngood.publishing import release
    from knowngood.registries.reference import Reference

    here = project.find()
    cells = select.select(here.matrix.cells, here.matrix.aliases, [arguments.cell])
    if len(cells) != 1:
        raise UsageError(f"{arguments.cell!r} selects {len(cells)} cells; name one")
    wanted = Format(arguments.format)
    if arguments.image and wanted not in (Format.APPTAINER, Format.DEVCONTAINER):
        raise UsageError(f"--image has no meaning for {wanted}, which is made of the lock alone")
    image = str(Reference.parse(arguments.image)) if arguments.image else None
    locked = release.committed(here, cells[0])
    if wanted is Format.REQUIREMENTS:
        text = exports.requirements(locked)
    elif wanted is Format.PYLOCK:
        text = exports.pylock(locked, _urls(locked))
    elif wanted is Format.CONDA:
        text = exports.conda(locked)
    elif wanted is Format.DEVCONTAINER:
        text = exports.devcontainer(locked, image or f"knowngood:{locked.cell}")
    else:
        text = exports.apptainer(locked, release.base(here, locked), image)
    document = {"id": str(locked.cell), "format": str(wanted), "file": arguments.output}
    if arguments.output:
        write_text(Path(arguments.output), text)
        return Answer(0, document, f"{arguments.output}: {wanted} of {locked.cell}")
    return Answer(0, {**document, "text": text}, text.rstrip("\n"))


def _urls(locked: CellLock) -> Mapping[str, str]:
    """Where the wheels of the lock are, by their hash."""
    from knowngood import progress
    from knowngood.harvest.index import SimpleIndex
    from knowngood.locks import located

    with progress.reporter(str(locked.cell)) as say:
        say(f"asking the index where {len(locked.distributions)} wheels are")
        found = located.locate(locked.distributions, SimpleIndex())
    return {sha256: file.url for sha256, file in found.items()}
