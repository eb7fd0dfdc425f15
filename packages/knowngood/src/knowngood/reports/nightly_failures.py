"""Failures in earlier nightly reports: each stays a failure until its check is made again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from knowngood.reports.nightly_report import (
    UNUSABLE_HISTORY,
    NightlyFinding,
    NightlyReport,
    NightlyResult,
    NightlySeverity,
    ResultState,
)

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
