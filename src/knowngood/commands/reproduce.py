"""`knowngood reproduce [INCIDENT]`: makes a known failure happen, and its cure; lists what can be reproduced."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from knowngood.cli import Answer
from knowngood.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.progress import Say
    from knowngood.reproducing.reproduce import Place


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("incident", nargs="?", metavar="INCIDENT", help="an incident's id; without it, the list")
    parser.add_argument(
        "--in",
        dest="place",
        choices=("image", "venv", "here"),
        default="image",
        help="images, built as those of cells are; virtual environments on this machine; or the environment that "
        "knowngood runs in, as it is (default: %(default)s)",
    )
    parser.add_argument(
        "--side", metavar="SIDE", help="only `failing`, `fixed` or one side by its name; leaves no evidence"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environments or images")


def run(arguments: argparse.Namespace) -> Answer:
    """Reproduce one, or list all."""
    if arguments.incident is None:
        return _list()
    from knowngood import progress
    from knowngood.reproducing import reproductions
    from knowngood.reproducing.reproduce import exit_code, reproduce
    from knowngood.reproducing.sources import unpack

    case = reproductions.load(arguments.incident)
    sides = case.definition.chosen(arguments.side)
    if not sides:
        known = ", ".join(map(repr, case.definition.sides))
        raise UsageError(f"{arguments.incident} has no side {arguments.side!r}; its sides are {known}")
    with progress.reporter(arguments.incident) as say:
        place = _place(arguments.place, keep=arguments.keep, say=say)
        found = reproduce(case, _incidents(), place, unpack, sides=sides, say=say)
    path = None if arguments.side else reproductions.store(found)
    text = _table(found, part=bool(arguments.side))
    if path:
        text += f"\nevidence: {path}"
    return Answer(exit_code(found), {**found, "evidence": path and str(path)}, text)


def _place(name: str, *, keep: bool, say: Say) -> Place:
    from knowngood import project

    if name == "here":
        from knowngood.reproducing.here import Here

        return Here()
    if name == "venv":
        from knowngood.reproducing.venv import Venv

        return Venv(locked_at=project.find().matrix.locked_at, keep=keep)
    from knowngood.engines import engine
    from knowngood.reproducing.image import Images

    return Images(project.find(), engine.ensure(say=say), keep=keep)


def _incidents() -> Mapping[str, Any]:
    from knowngood.incidents.files import read

    return {incident.id: incident for incident in read()}


def _table(found: Mapping[str, Any], *, part: bool) -> str:
    from knowngood import table
    from knowngood.reproducing import reproductions

    rows = [[side["side"], side["outcome"], reproductions.told(side)] for side in found["sides"]]
    lines = [table.text(["side", "outcome", "what it did"], rows)]
    lines += [f"stands in: {item['module']}, for {item['for']}" for item in found["stand_ins"]]
    return "\n".join([*lines, *([] if part else [f"{found['reproduction']}: {found['outcome']}"])])


def _list() -> Answer:
    from knowngood import table
    from knowngood.reproducing import reproductions

    rows, document = [], []
    for name in reproductions.names():
        known = reproductions.summary(name)
        last = known.runs[-1] if known.runs else None
        document.append(
            {
                "incident": name,
                "outcome": known.outcome,
                "runs": [{key: item[key] for key in ("where", "when", "outcome", "file")} for item in known.runs],
            }
        )
        where = ", ".join(sorted(item["where"] for item in known.runs))
        rows.append([name, known.outcome if last else "never run", where, last["file"] if last else ""])
    return Answer(0, document, table.text(["incident", "last seen", "in", "evidence"], rows))
