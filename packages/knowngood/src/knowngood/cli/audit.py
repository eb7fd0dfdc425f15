"""`knowngood audit [SELECT]`: list known vulnerabilities of the wheels and Debian packages that cells lock."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.project.checkout import find_project
from knowngood.registry import vulnerability_audit
from knowngood.registry.vulnerability_audit import AuditReport


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Ask both services about everything that the cells lock. A question without an answer gives exit 3."""
    project = find_project()
    cells = project.matrix.select_cells(arguments.select)
    with report_progress("audit") as notify:
        report, wheels = vulnerability_audit.audit_cells(project, cells, notify)
    code = 1 if report.open else 3 if report.unanswered else 0
    return Answer(code, {"cells": [str(cell) for cell in cells], **_document(report)}, _text(report, wheels))


def _document(report: AuditReport) -> dict[str, object]:
    return {
        "open": [asdict(item) for item in report.open],
        "accepted": [asdict(item) for item in report.accepted],
        "unanswered": list(report.unanswered),
        "unused": [{"id": entry.id, "package": entry.package, "line": entry.line} for entry in report.unused],
    }


def _text(report: AuditReport, wheels: int) -> str:
    lines = [
        f"{item.package} {item.version}: {item.id}" + (f", fixed in {item.fixed}" if item.fixed else ", no fix yet")
        for item in report.open
    ]
    lines += [f"unknown: {reason}" for reason in report.unanswered]
    lines += [
        f"{vulnerability_audit.ALLOWLIST_FILE}:{entry.line}: no service reports {entry.id} of {entry.package}; "
        "remove the entry"
        for entry in report.unused
    ]
    summary = f"{len(report.open)} open, {len(report.accepted)} accepted by {vulnerability_audit.ALLOWLIST_FILE}"
    return "\n".join(
        [*lines, f"{wheels} wheels and their bases: {summary}" + (", not all known" * bool(report.unanswered))]
    )
