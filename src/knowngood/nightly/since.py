"""What is new since the last report. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from knowngood.nightly.model import Finding, Report, Result, Severity


def before(reports: Iterable[Report], date: str) -> Report | None:
    """The newest report of an earlier date."""
    return max((report for report in reports if report.date < date), key=lambda report: report.date, default=None)


def dated(result: Result, last: Report | None, date: str) -> Result:
    """The result with a date at each finding: of the first report that has had it without a break."""
    known = {finding.key: finding.since for finding in last.findings} if last else {}
    findings = tuple(_dated(finding, known.get(finding.key, date), date) for finding in result.findings)
    return result.model_copy(update={"findings": findings})


def _dated(finding: Finding, since: str, date: str) -> Finding:
    updated: dict[str, object] = {"since": since}
    if finding.kind == "vulnerability" and since < date:
        updated["severity"] = Severity.WARNING  # it was told with an exit code on its first night
    return finding.model_copy(update=updated)
