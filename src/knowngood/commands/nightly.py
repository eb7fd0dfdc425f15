"""`knowngood nightly [SELECT]`: is what is known good still good; what `nox -s nightly` runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common

if TYPE_CHECKING:
    from knowngood.nightly.model import Report

CHECKS = ("files", "upstream", "audit", "rebuild", "suite")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    parser.add_argument(
        "--folder", type=Path, metavar="FOLDER", help="of the reports (default: the project's nightly/)"
    )
    parser.add_argument("--only", action="append", choices=CHECKS, metavar="CHECK", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--share", type=_count, default=2, metavar="N", help="cells that are built again (2)")
    parser.add_argument(
        "--budget", type=_count, metavar="MINUTES", help="begin no rebuild and no suite that takes longer"
    )
    parser.add_argument("--expires", type=_count, default=7, metavar="DAYS", help="after which a suite runs again (7)")
    parser.add_argument(
        "--pairwise", action="store_true", help="run the suites of a covering set of cells, not of all of them"
    )
    parser.add_argument("--elsewhere", metavar="HOST", help="another engine (as DOCKER_HOST) for a second try")
    parser.add_argument("--no-bisect", action="store_true", help="say which packages changed, do not search among them")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    common.add_tracker(parser)
    common.add_wheelhouse(parser)
    common.add_smoke(parser, quick=True)


def run(arguments: argparse.Namespace) -> Answer:
    """Make the night's checks, or finish those of a run that was killed; the worst finding decides the exit code."""
    from knowngood import progress
    from knowngood.nightly import evening, state, tonight

    here = project.find()
    asked = tonight.Asked(
        words=tuple(arguments.select),
        folder=(arguments.folder or here.root / "nightly").resolve(),
        checks=frozenset(arguments.only or CHECKS),
        share=arguments.share,
        budget=arguments.budget,
        expires=0 if arguments.again else arguments.expires,
        pairwise=arguments.pairwise,
        elsewhere=arguments.elsewhere,
        bisect=not arguments.no_bisect,
        tracker=arguments.tracker,
        wheelhouse=arguments.wheelhouse,
        suite=common.suite_options(arguments),
    )
    with progress.reporter("nightly") as say:
        prepared = evening.prepare(here, asked, say)
    if arguments.dry_run:
        commands = prepared.commands()
        return Answer(0, {"commands": commands}, "\n".join(commands))
    report = prepared.run(progress.reporter)
    page = state.save(report, asked.folder)
    print(f"wrote {page} and {page.with_suffix('.json').name}", file=sys.stderr)
    return Answer(report.exit, report.model_dump(mode="json", by_alias=True), text(report))


def text(report: Report) -> str:
    """The table: a line a check, and below it what was found."""
    from knowngood import table
    from knowngood.nightly.model import State

    rows = [
        [str(result.check), result.subject or "-", result.outcome, _brief(result.note), f"{result.seconds:.0f} s"]
        for result in report.results
        if result.state is State.DONE or result.subject
    ]
    found = [f"{item.severity}{_since(item.since, report.date)}: {item.text}" for item in report.findings]
    return "\n".join(
        [
            table.text(["check", "cell", "outcome", "", "time"], rows),
            *found,
            *(f"note: {note}" for note in report.notes),
        ]
    )


def _brief(note: str) -> str:
    return note if len(note) <= 90 else note[:89] + "…"


def _since(since: str, date: str) -> str:
    return f" (since {since})" if since and since != date else ""


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 100000")
    return int(text)
