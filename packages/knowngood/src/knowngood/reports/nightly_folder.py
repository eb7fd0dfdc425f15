"""The folder `evidence/nights/`: earlier reports, what they leave open, and the progress of the present run."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from knowngood.core.data_files import load_json
from knowngood.core.errors import InputError
from knowngood.core.local_files import write_atomically
from knowngood.reports.nightly_report import (
    REPORT_SCHEMA,
    UNUSABLE_HISTORY,
    NightlyFinding,
    NightlyReport,
    NightlyResult,
    NightlySeverity,
    ResultState,
    render_report_page,
    unusable_history_finding,
)

_STATE_SCHEMA = "knowngood/nightly-state/1"
_UNREADABLE = (OSError, InputError, ValidationError, KeyError, TypeError)


def load_reports(folder: Path) -> tuple[list[NightlyReport], list[NightlyFinding]]:
    """Return the reports of a folder, oldest first, and a finding for each file that cannot be used."""
    reports, findings = [], []
    for path in sorted(folder.glob("[0-9]*-[0-9]*-[0-9]*.json")):
        reason = ""
        try:
            document = load_json(path, dict[str, Any], remedy="it is left out", file=path.name)
            if document["schema"] != REPORT_SCHEMA:
                reason = f"{path.name}: schema {document['schema']!r}, but this program reads {REPORT_SCHEMA}"
            else:
                report = NightlyReport.model_validate(document)
                reason = "" if report.date == path.stem else f"{path.name}: it contains the report of {report.date}"
        except InputError as error:
            reason = str(error.problems[0])
        except _UNREADABLE as error:
            reason = f"{path.name}: not readable as a report ({type(error).__name__})"
        if reason:
            findings.append(unusable_history_finding(path.name, reason))
        else:
            reports.append(report)
    return reports, findings


def save_report(report: NightlyReport, folder: Path) -> Path:
    """Write the report as JSON and as Markdown, and return the path of the Markdown page."""
    write_atomically(folder / f"{report.date}.json", report.render_json())
    page = folder / f"{report.date}.md"
    write_atomically(page, render_report_page(report))
    return page


class NightlyProgress:
    """The finished tasks of one date; they are stored after each check, so that an interrupted run can go on."""

    def __init__(self, folder: Path, date: str) -> None:
        """Read the stored progress of the date, if there is any, and delete that of earlier dates."""
        self.path = folder / f".{date}.state.json"
        self.started: str | None = None
        self.done: dict[str, NightlyResult] = {}
        try:
            stored = load_json(self.path, dict[str, Any], remedy="remove it")
            if stored["schema"] == _STATE_SCHEMA:
                self.done = {item.task: item for item in map(NightlyResult.model_validate, stored["done"])}
                self.started = stored["started"]
        except _UNREADABLE:
            self.done = {}  # the file is missing or damaged, so the run begins anew
        for other in folder.glob(".[0-9]*.state.json"):
            if other.name < self.path.name:
                other.unlink(missing_ok=True)

    def keep(self, result: NightlyResult, started: str) -> None:
        """Store one more finished task; `started` is the time at which the run began."""
        self.done[result.task] = result
        self.started = started
        done = [item.model_dump(mode="json") for item in self.done.values()]
        document = {"schema": _STATE_SCHEMA, "started": started, "done": done}
        write_atomically(self.path, json.dumps(document, indent=1) + "\n")


_JUDGED_ANEW = frozenset({"not-current", "nothing-examined", UNUSABLE_HISTORY})
"""Kinds of findings that every run decides again for all selected cells, whatever it has time for."""


def find_newest_report(reports: Iterable[NightlyReport], date: str) -> NightlyReport | None:
    """Return the newest report up to this date, that of an earlier run on the same date included."""
    return max((report for report in reports if report.date <= date), key=lambda report: report.date, default=None)


def keep_open_failures(
    results: Sequence[NightlyResult], newest: NightlyReport | None, cells: Collection[str]
) -> list[NightlyResult]:
    """Return the results with the failures of the newest report whose checks were not made in this run.

    A check counts as made when it is done, or when a valid proof made it unnecessary. Failures of cells that are not
    among `cells`, those of the matrix, are dropped.
    """
    made = {result.task for result in results if result.state is not ResultState.LEFT}
    failures = {
        result.task: (result, errors)
        for result in (newest.results if newest else ())
        if result.task not in made and (not result.subject or result.subject in cells) and (errors := _errors(result))
    }
    kept = [
        result.model_copy(update={"findings": (*result.findings, *failures.pop(result.task)[1])})
        if result.task in failures
        else result
        for result in results
    ]
    note = f"failed in the report of {newest.date}" if newest else ""
    return kept + [
        NightlyResult(
            check=result.check,
            subject=result.subject,
            key=result.key,
            state=ResultState.LEFT,
            outcome=str(ResultState.LEFT),
            note=note,
            findings=errors,
        )
        for result, errors in failures.values()
    ]


def _errors(result: NightlyResult) -> tuple[NightlyFinding, ...]:
    return tuple(
        finding
        for finding in result.findings
        if finding.severity is NightlySeverity.ERROR and finding.kind not in _JUDGED_ANEW
    )
