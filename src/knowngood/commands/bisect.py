"""`knowngood bisect GOOD BAD -- COMMAND`: which package turns a good lock bad."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common
from knowngood.errors import UsageError

if TYPE_CHECKING:
    from knowngood.nightly.bisect import Found
    from knowngood.nightly.culprit import Search

_END = "a requirements file, a pylock, a file of evidence, a cell or alias, or REVISION:CELL of git"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("good", metavar="GOOD", help=_END)
    parser.add_argument("bad", metavar="BAD", help="the same")
    parser.add_argument(
        "command_line",
        nargs="+",
        metavar="COMMAND",
        help="after --: what runs in each environment; 0 is good, 125 cannot tell, anything else is bad",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="one environment: GOOD with these packages of BAD"
    )
    parser.add_argument("--python", metavar="VERSION", help="of the environments (default: that of the locks)")
    parser.add_argument("--most", type=int, default=30, metavar="N", help="environments at most (30)")
    parser.add_argument("--timeout", type=common.seconds, default=1200, metavar="SECONDS", help="of the command (1200)")
    common.add_wheelhouse(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Bisect: exit 0 when the culprit was found and shown, 1 when there is none, 3 when it is not sure."""
    from knowngood import progress
    from knowngood.locks import wheelhouse
    from knowngood.nightly import culprit, pins

    here = project.find()
    search = culprit.Search(
        good=pins.read(arguments.good, here),
        bad=pins.read(arguments.bad, here),
        command=tuple(arguments.command_line),
        python=arguments.python,
        wheelhouse=wheelhouse.folder(arguments.wheelhouse),
        seconds=arguments.timeout,
        most=max(1, arguments.most),
    )
    with progress.reporter("bisect") as say:
        if arguments.only:
            return _once(search, arguments.only, say)
        found, said = search.run(say)
    code = 0 if found.proven else 3 if found.culprits else 1
    return Answer(code, _document(found, search, said), culprit.told(found, search, said))


def _once(search: Search, names: list[str], say: object) -> Answer:
    from packaging.utils import canonicalize_name

    from knowngood.nightly.bisect import Outcome
    from knowngood.nightly.moves import mixed, moves

    wanted = {str(canonicalize_name(name)) for name in names}
    chosen = [move for move in moves(search.good.versions, search.bad.versions) if move.name in wanted]
    if lacking := wanted - {move.name for move in chosen}:
        raise UsageError(f"--only {', '.join(sorted(lacking))}: it is the same in both locks")
    assert callable(say)  # noqa: S101
    made = search.environment(search.interpreter, say, show=True)
    outcome = made.outcome(mixed(search.good.versions, chosen))
    code = {Outcome.GOOD: 0, Outcome.BAD: 1, Outcome.UNRESOLVED: 3}[outcome]
    document = {"outcome": str(outcome), "moved": [vars(move) for move in chosen]}
    return Answer(code, document, f"{outcome} with {', '.join(map(str, chosen))}")


def _document(found: Found, search: Search, said: list[str]) -> dict[str, object]:
    return {
        "culprits": [vars(move) for move in found.culprits],
        "along": [vars(move) for move in found.along],
        "proven": found.proven,
        "environments": found.environments,
        "changed": found.changed,
        "note": found.note,
        "said": said[-1] if said else "",
        "again": search.again(found) if found.culprits else None,
    }
