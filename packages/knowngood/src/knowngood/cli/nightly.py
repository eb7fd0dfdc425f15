"""`knowngood nightly [SELECT]`: check that what is known good is still good; `nox -s nightly` runs it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.formatting import format_table
from knowngood.project.checkout import find_project
from knowngood.reports import nightly_folder, nightly_run
from knowngood.reports.nightly_report import NightlyReport, ResultState

CHECKS = ("files", "upstream", "audit", "rebuild", "suite")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help="the folder of the reports (default: the project's evidence/nights/)",
    )
    parser.add_argument(
        "--only", action="append", choices=CHECKS, metavar="CHECK", help=f"only this check; one of {', '.join(CHECKS)}"
    )
    parser.add_argument(
        "--budget",
        type=_parse_count,
        metavar="MINUTES",
        help="start no rebuild and no suite that would exceed this time",
    )
    shared_arguments.add_suite_part(parser, quick=True)


def run(arguments: argparse.Namespace) -> Answer:
    """Run the nightly checks, or finish those of a run that was killed. The worst finding decides the exit code."""
    project = find_project()
    request = nightly_run.NightlyRequest(
        words=tuple(arguments.select),
        folder=(arguments.folder or project.root / "evidence/nights").resolve(),
        checks=frozenset(arguments.only or CHECKS),
        budget=arguments.budget,
        suite=shared_arguments.suite_options_from_arguments(arguments),
    )
    with report_progress("nightly") as notify:
        prepared = nightly_run.prepare_nightly(project, request, notify)
    report = prepared.run(report_progress)
    page = nightly_folder.save_report(report, request.folder)
    print(f"wrote {page} and {page.with_suffix('.json').name}", file=sys.stderr)
    return Answer(report.exit, report.model_dump(mode="json", by_alias=True), _text(report))


def _text(report: NightlyReport) -> str:
    """Return the table with a line for each check, and the findings below it."""
    rows = [
        [str(result.check), result.subject or "-", result.outcome, _shorten(result.note), f"{result.seconds:.0f} s"]
        for result in report.results
        if result.state is ResultState.DONE or result.subject
    ]
    findings = [f"{item.severity}{_since(item.since, report.date)}: {item.text}" for item in report.findings]
    return "\n".join(
        [
            format_table(["check", "cell", "outcome", "", "time"], rows),
            *findings,
            *(f"note: {note}" for note in report.notes),
        ]
    )


def _shorten(note: str) -> str:
    return note if len(note) <= 90 else note[:89] + "…"


def _since(since: str, date: str) -> str:
    return f" (since {since})" if since and since != date else ""


def _parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) > 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 100000")
    return int(text)
