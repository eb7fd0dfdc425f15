"""The report of a nightly run: its findings and results, the schema of its JSON, and its page in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

REPORT_SCHEMA = "knowngood/nightly/1"
UNUSABLE_HISTORY = "unusable-history"
"""The kind of the finding that a file of an earlier run cannot be used."""


class NightlyCheck(StrEnum):
    """What a nightly run checks, in the order in which it is reported."""

    FILES = "files"
    """Every locked file is still on the index, not withdrawn, and has the same hash."""
    UPSTREAM = "upstream"
    """What is new on every axis, which cells it fits or breaks, and which cells could be made of it."""
    AUDIT = "audit"
    """Which vulnerabilities are known."""
    REBUILD = "rebuild"
    """A cell that is built again from nothing gives the recorded digest."""
    SUITE = "suite"
    """A cell's image still passes its suite."""
    HISTORY = "history"
    """The reports and the evidence of earlier runs can be read; every run looks at them."""


class NightlySeverity(StrEnum):
    """How bad a finding is, worst first."""

    ERROR = "error"
    MISSING = "missing"
    """This host lacks something, so it is unknown whether what is published is good."""
    UNKNOWN = "unknown"
    """A service did not answer, or there was nothing to look at."""
    WARNING = "warning"
    INFO = "info"

    @property
    def exit_code(self) -> int:
        """The exit code of the command when this is its worst finding."""
        return {"error": 1, "missing": 4, "unknown": 3}.get(self.value, 0)


class ResultState(StrEnum):
    """Whether a check was made."""

    DONE = "done"
    PROVEN = "proven"
    """Not made, because an earlier proof has not expired."""
    LEFT = "left"
    """Not made: the share or the time of this run was used for other cells."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NightlyFinding(_Frozen):
    """One thing that a maintainer should know."""

    check: NightlyCheck
    kind: str
    severity: NightlySeverity
    subject: str
    """What the finding is about: a file, a cell, a release or a vulnerability."""
    text: str
    cells: tuple[str, ...] = ()
    since: str = ""
    """The date of the first report that had this finding; all reports after it had it as well."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What the same finding has in common on different dates."""
        return (self.check, self.kind, self.subject)


def unexamined_finding(
    check: NightlyCheck, reason: str, severity: NightlySeverity = NightlySeverity.ERROR
) -> NightlyFinding:
    """Return the finding that a check looked at nothing, so that its silence does not count as good."""
    text = f"{check}: nothing was examined: {reason}"
    return NightlyFinding(check=check, kind="nothing-examined", severity=severity, subject=str(check), text=text)


def unusable_history_finding(subject: str, reason: str) -> NightlyFinding:
    """Return the finding that a file of an earlier run cannot be used: what it said may have been red."""
    text = f"{reason}; restore it from version control"
    return NightlyFinding(
        check=NightlyCheck.HISTORY, kind=UNUSABLE_HISTORY, severity=NightlySeverity.ERROR, subject=subject, text=text
    )


class NightlyResult(_Frozen):
    """The result of one check of one subject."""

    check: NightlyCheck
    subject: str = ""
    """The cell; empty for a check of the whole project."""
    key: str = ""
    """A hash of the inputs; with another key the check has to be made again."""
    state: ResultState = ResultState.DONE
    outcome: str
    """A word or two: `same`, `good`, `flaky`, `2 gone`."""
    note: str = ""
    seconds: float = 0
    findings: tuple[NightlyFinding, ...] = ()
    data: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def task(self) -> str:
        """The name of the task in the stored progress."""
        return task_name(self.check, self.subject)


class NightlyReport(_Frozen):
    """The report of one nightly run."""

    schema_: str = Field(default=REPORT_SCHEMA, alias="schema")
    date: str
    started: str
    finished: str
    node: Mapping[str, Any]
    revision: str | None
    """The commit of the checkout."""
    cells: tuple[str, ...]
    settings: Mapping[str, Any]
    results: tuple[NightlyResult, ...]
    exit: int
    notes: tuple[str, ...] = ()
    """Cells that replace others."""

    @property
    def findings(self) -> list[NightlyFinding]:
        """All findings, the worst first."""
        return sort_nightly_findings(finding for result in self.results for finding in result.findings)

    def render_json(self) -> str:
        """Return the text of the report's JSON file."""
        return self.model_dump_json(indent=1, by_alias=True) + "\n"


def task_name(check: NightlyCheck, subject: str) -> str:
    """Return the name of the task that makes a check of a subject: `suite:<cell>`, or `files`."""
    return f"{check}:{subject}" if subject else str(check)


def sort_nightly_findings(findings: Iterable[NightlyFinding]) -> list[NightlyFinding]:
    """Sort findings: the worst first, then by check, then new before old."""
    severities, checks = list(NightlySeverity), list(NightlyCheck)
    newest_first = sorted(findings, key=lambda item: item.since, reverse=True)
    return sorted(newest_first, key=lambda item: (severities.index(item.severity), checks.index(item.check)))


def findings_exit_code(findings: Iterable[NightlyFinding]) -> int:
    """Return the exit code of the command, which is that of the worst finding."""
    ordered = sort_nightly_findings(findings)
    return ordered[0].severity.exit_code if ordered else 0


def find_previous_report(reports: Iterable[NightlyReport], date: str) -> NightlyReport | None:
    """Return the newest report of an earlier date."""
    return max((report for report in reports if report.date < date), key=lambda report: report.date, default=None)


def date_findings(result: NightlyResult, last: NightlyReport | None, date: str) -> NightlyResult:
    """Return the result with `since` set in each finding: as in the last report, or `date` when the finding is new."""
    since = {finding.key: finding.since for finding in last.findings} if last else {}
    findings = tuple(_date_finding(finding, since.get(finding.key, date), date) for finding in result.findings)
    return result.model_copy(update={"findings": findings})


def _date_finding(finding: NightlyFinding, since: str, date: str) -> NightlyFinding:
    updated: dict[str, object] = {"since": since}
    if finding.kind == "vulnerability" and since < date:
        updated["severity"] = NightlySeverity.WARNING  # it is an error only in its first report
    return finding.model_copy(update=updated)


_CELLS_SHOWN = 16
_FINDINGS_SHOWN = 14
_LONGEST_TEXT = 150
_EXIT_WORDS = {0: "good", 1: "**failed**", 3: "not all known", 4: "**this host lacks something**"}
_ESCAPES: Mapping[int, str] = str.maketrans({"|": "\\|", "<": "&lt;", "\n": " ", "\r": " ", "\0": ""})


def render_report_page(report: NightlyReport) -> str:
    """Return the report as one screen of Markdown: a summary, a table of project checks, one of cells, and findings."""
    findings = report.findings
    title = f"# Nightly report of {report.date}: {_EXIT_WORDS.get(report.exit, 'failed')}"
    lines = [title, "", _render_summary(report, findings), ""]
    project = [
        [str(it.check), _outcome_and_note(it), _render_time(it.seconds)] for it in report.results if not it.subject
    ]
    lines += _render_table(["check", "outcome", "time"], project)
    cells = _cell_rows(report)
    lines += _render_table(["cell", "built again", "suite"], cells[:_CELLS_SHOWN])
    if len(cells) > _CELLS_SHOWN:
        lines[-1:] = [f"and {len(cells) - _CELLS_SHOWN} more cells", ""]
    lines += [f"- {_render_finding(finding, report.date)}" for finding in findings[:_FINDINGS_SHOWN]]
    if len(findings) > _FINDINGS_SHOWN:
        lines.append(f"- and {len(findings) - _FINDINGS_SHOWN} more; the JSON has all of them")
    lines += [f"- note: {_escape(text)}" for text in report.notes[:3]]
    return "\n".join(lines).rstrip() + "\n"


def _render_summary(report: NightlyReport, findings: Sequence[NightlyFinding]) -> str:
    counts = {severity: sum(1 for item in findings if item.severity is severity) for severity in NightlySeverity}
    counted = ", ".join(f"{count} {severity}" for severity, count in counts.items() if count) or "no findings"
    seconds = sum(result.seconds for result in report.results)
    done = sum(1 for result in report.results if result.state is ResultState.DONE)
    left = sum(1 for result in report.results if result.state is ResultState.LEFT)
    revision = f", revision {report.revision[:12]}" if report.revision else ""
    return f"{counted}; {done} checks in {_render_time(seconds)}, {left} left for a later run{revision}"


def _cell_rows(report: NightlyReport) -> list[list[str]]:
    """Return a row for each cell, those with the most finished checks first."""
    by_cell: dict[str, dict[NightlyCheck, NightlyResult]] = {}
    for result in report.results:
        if result.subject:
            by_cell.setdefault(result.subject, {})[result.check] = result
    order = sorted(by_cell.items(), key=lambda item: -sum(it.state is ResultState.DONE for it in item[1].values()))
    return [
        [f"`{cell}`", *(_render_cell_result(checks.get(check)) for check in (NightlyCheck.REBUILD, NightlyCheck.SUITE))]
        for cell, checks in order
    ]


def _render_cell_result(result: NightlyResult | None) -> str:
    if result is None:
        return "-"
    if result.state is not ResultState.DONE:
        return _outcome_and_note(result)
    failed = any(item.severity is NightlySeverity.ERROR for item in result.findings)
    return f"{'**FAILED** ' if failed else ''}{_outcome_and_note(result)}, {_render_time(result.seconds)}"


def _outcome_and_note(result: NightlyResult) -> str:
    return _escape(": ".join(filter(None, [result.outcome, result.note])))


def _render_finding(finding: NightlyFinding, date: str) -> str:
    since = f" (since {finding.since})" if finding.since and finding.since != date else ""
    cells = f" [{len(finding.cells)} cells]" if len(finding.cells) > 1 else ""
    return f"{finding.severity}{since}: {_escape(finding.text)}{cells}"


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *body, ""] if body else []


def _render_time(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _escape(text: str) -> str:
    """Return one short line without characters that Markdown or a table would interpret."""
    short = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
    return short.translate(_ESCAPES)
