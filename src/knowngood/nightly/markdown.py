"""A report as one screen of Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from knowngood.nightly.model import Check, Finding, Report, Result, Severity, State

_CELLS = 16
_FINDINGS = 14
_WIDTH = 150

_WORDS = {0: "good", 1: "**red**", 3: "not all known", 4: "**this host lacks something**"}


def page(report: Report) -> str:
    """The file: a line of summary, a table of what is of no one cell, one of the cells, and the worst findings."""
    found = report.findings
    lines = [f"# Night of {report.date}: {_WORDS.get(report.exit, 'red')}", "", _summary(report, found), ""]
    lines += _table(["check", "outcome", "time"], [_whole(result) for result in report.results if not result.subject])
    cells = _cells(report)
    lines += _table(["cell", "built again", "suite"], cells[:_CELLS])
    if len(cells) > _CELLS:
        lines[-1:] = [f"and {len(cells) - _CELLS} cells more", ""]
    lines += [f"- {_said(finding, report.date)}" for finding in found[:_FINDINGS]]
    if len(found) > _FINDINGS:
        lines.append(f"- and {len(found) - _FINDINGS} more; the JSON has them all")
    lines += [f"- note: {_escaped(text)}" for text in report.notes[:3]]
    return "\n".join(lines).rstrip() + "\n"


def _summary(report: Report, found: Sequence[Finding]) -> str:
    counts = {severity: sum(1 for item in found if item.severity is severity) for severity in Severity}
    told = ", ".join(f"{count} {severity}" for severity, count in counts.items() if count) or "nothing found"
    seconds = sum(result.seconds for result in report.results)
    done = sum(1 for result in report.results if result.state is State.DONE)
    left = sum(1 for result in report.results if result.state is State.LEFT)
    revision = f", revision {report.revision[:12]}" if report.revision else ""
    return f"{told}; {done} checks in {_time(seconds)}, {left} left for another night{revision}"


def _whole(result: Result) -> list[str]:
    return [str(result.check), _joined(result), _time(result.seconds)]


def _cells(report: Report) -> list[list[str]]:
    """A row a cell, those where something was done or found first."""
    by_cell: dict[str, dict[Check, Result]] = {}
    for result in report.results:
        if result.subject:
            by_cell.setdefault(result.subject, {})[result.check] = result
    order = sorted(by_cell.items(), key=lambda item: -sum(one.state is State.DONE for one in item[1].values()))
    return [
        [f"`{cell}`", *(_of_cell(checks.get(check)) for check in (Check.REBUILD, Check.SUITE))]
        for cell, checks in order
    ]


def _of_cell(result: Result | None) -> str:
    if result is None:
        return "-"
    if result.state is not State.DONE:
        return _joined(result)
    return f"{_mark(result)}{_joined(result)}, {_time(result.seconds)}"


def _mark(result: Result) -> str:
    return "**RED** " if any(item.severity is Severity.ERROR for item in result.findings) else ""


def _joined(result: Result) -> str:
    return _escaped(": ".join(filter(None, [result.outcome, result.note])))


def _said(finding: Finding, date: str) -> str:
    since = f" (since {finding.since})" if finding.since and finding.since != date else ""
    return f"{finding.severity}{since}: {_escaped(finding.text)}{_where(finding.cells)}"


def _where(cells: Sequence[str]) -> str:
    return f" [{len(cells)} cells]" if len(cells) > 1 else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *body, ""] if body else []


def _time(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


_SIGNS: Mapping[int, str] = str.maketrans({"|": "\\|", "<": "&lt;", "\n": " ", "\r": " ", "\0": ""})


def _escaped(text: str) -> str:
    """One line that no table and no page takes for anything but text."""
    short = text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
    return short.translate(_SIGNS)
