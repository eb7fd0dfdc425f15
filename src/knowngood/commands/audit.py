"""`knowngood audit [SELECT]`: known vulnerabilities of the wheels and Debian packages that cells lock."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common

if TYPE_CHECKING:
    from knowngood.publishing.audit import Report


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    common.add_tracker(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Ask both services about everything that the cells lock; what one does not answer is unknown."""
    from knowngood import progress, select
    from knowngood.publishing import audit, auditing

    here = project.find()
    cells = select.select(here.matrix.cells, here.matrix.aliases, arguments.select)
    with progress.reporter("audit") as say:
        report, wheels = auditing.ask(here, cells, arguments.tracker or audit.TRACKER, say)
    code = 1 if report.open else 3 if report.unanswered else 0
    return Answer(code, {"cells": [str(cell) for cell in cells], **_document(report)}, _text(report, wheels))


def _document(report: Report) -> dict[str, object]:
    return {
        "open": [asdict(item) for item in report.open],
        "accepted": [asdict(item) for item in report.accepted],
        "unanswered": list(report.unanswered),
        "unused": [{"id": entry.id, "package": entry.package, "line": entry.line} for entry in report.unused],
    }


def _text(report: Report, wheels: int) -> str:
    from knowngood.publishing import allowlist

    lines = [
        f"{item.package} {item.version}: {item.id}" + (f", fixed in {item.fixed}" if item.fixed else ", no fix yet")
        for item in report.open
    ]
    lines += [f"unknown: {reason}" for reason in report.unanswered]
    lines += [
        f"{allowlist.FILE}:{entry.line}: nothing found is about {entry.id} of {entry.package}; remove the entry"
        for entry in report.unused
    ]
    told = f"{len(report.open)} open, {len(report.accepted)} accepted by {allowlist.FILE}"
    return "\n".join(
        [*lines, f"{wheels} wheels and their bases: {told}" + (", not all known" * bool(report.unanswered))]
    )
