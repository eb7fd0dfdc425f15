"""The table of a contract: the verdict for every release of the caller with every release of the callee. Pure.

`facts/contracts/<name>.json` holds it compressed: neighbouring callers with the same verdicts are one run, and so are
neighbouring callees within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from knowngood.core.formatting import format_table

SILENT_PREFIX = "silently: "
"""How a verdict's text begins when the callee lacks what the caller would have used."""


class PairOutcome(StrEnum):
    """What happens when a pair of releases is used together."""

    WORKS = "works"
    BREAKS = "breaks"
    REFUSES = "refuses"
    """The caller's own gate (a version test, an import in a `try`) prevents the use."""
    NOT_CALLED = "not called"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class PairVerdict:
    """The outcome of a pair, and its text: the exception, the gate, or why the callee is not called."""

    outcome: PairOutcome
    text: str = ""

    @property
    def silent(self) -> bool:
        """Whether the caller looked for something in the callee, did not find it, and went on without an error."""
        return self.outcome is PairOutcome.NOT_CALLED and self.text.startswith(SILENT_PREFIX)


CalleeRuns = tuple[tuple[str, str, PairVerdict], ...]
"""Runs of releases of the callee: first, last, verdict."""


@dataclass(frozen=True, kw_only=True)
class ContractTable:
    """The verdicts for all pairs of one contract."""

    contract: str
    caller: str
    callee: str
    callers: tuple[str, ...]
    callees: tuple[str, ...]
    rows: tuple[tuple[str, str, CalleeRuns], ...]
    """Runs of releases of the caller: first, last, and their verdicts."""
    yanked: frozenset[tuple[str, str]] = frozenset()
    """Package and version of the withdrawn releases."""

    def pairs(self) -> Iterator[tuple[str, str, PairVerdict]]:
        """Yield caller, callee and verdict of every pair."""
        for first, last, row in self.rows:
            for caller in _run(self.callers, first, last):
                for start, end, verdict in row:
                    for callee in _run(self.callees, start, end):
                        yield caller, callee, verdict

    def verdict(self, caller: str, callee: str) -> PairVerdict:
        """Return the verdict of one pair; `KeyError` for a release that is not in the table."""
        for first, last, row in self.rows:
            if caller in _run(self.callers, first, last):
                for start, end, verdict in row:
                    if callee in _run(self.callees, start, end):
                        return verdict
        raise KeyError((caller, callee))

    def affected(self, counts: Callable[[PairVerdict], bool]) -> set[tuple[str, str]]:
        """Return the pairs whose verdict `counts` accepts."""
        return {(caller, callee) for caller, callee, verdict in self.pairs() if counts(verdict)}


def table_from_document(document: Mapping[str, Any]) -> ContractTable:
    """Return the table in a checked facts file; `ValueError` when its runs are not of its releases."""
    sides = {side: document[side] for side in ("caller", "callee")}
    callers, callees = (tuple(side["releases"]) for side in sides.values())
    rows = []
    for item in document["pairs"]:
        first, last = item["caller"]
        for names, ends in ((callers, item["caller"]), *((callees, run[:2]) for run in item["callee"])):
            if not _run(names, ends[0], ends[1]):
                raise ValueError(f"{ends[0]} to {ends[1]} is no run of releases")
        row = tuple(
            (start, end, PairVerdict(outcome=PairOutcome(outcome), text=text))
            for start, end, outcome, text in item["callee"]
        )
        rows.append((first, last, row))
    return ContractTable(
        contract=document["contract"],
        caller=sides["caller"]["package"],
        callee=sides["callee"]["package"],
        callers=callers,
        callees=callees,
        rows=tuple(rows),
        yanked=frozenset(
            (side["package"], version)
            for side in sides.values()
            for version, entry in side["releases"].items()
            if entry["yanked"]
        ),
    )


def document_from_table(table: ContractTable) -> list[dict[str, Any]]:
    """Return the runs of a table in the form of `--json` and of its facts file."""
    return [
        {
            "caller": [first, last],
            "callee": [[start, end, str(verdict.outcome), verdict.text] for start, end, verdict in row],
        }
        for first, last, row in table.rows
    ]


def compress_verdicts(
    callers: Sequence[str], callees: Sequence[str], verdict: Callable[[str, str], PairVerdict]
) -> tuple[tuple[str, str, CalleeRuns], ...]:
    """Return the runs of a table, each as long as possible."""
    rows = [(caller, _runs(callees, [verdict(caller, callee) for callee in callees])) for caller in callers]
    runs = []
    for row, group in groupby(rows, key=lambda pair: pair[1]):
        names = [caller for caller, _ in group]
        runs.append((names[0], names[-1], row))
    return tuple(runs)


def _runs(names: Sequence[str], verdicts: Sequence[PairVerdict]) -> CalleeRuns:
    runs = []
    for verdict, group in groupby(zip(names, verdicts, strict=True), key=lambda pair: pair[1]):
        run = [name for name, _ in group]
        runs.append((run[0], run[-1], verdict))
    return tuple(runs)


def _run(names: Sequence[str], first: str, last: str) -> Sequence[str]:
    return names[names.index(first) : names.index(last) + 1]


def find_ranges(table: ContractTable, pairs: set[tuple[str, str]], packages: Sequence[str]) -> list[dict[str, str]]:
    """Return these pairs as ranges over `packages` (one or both of the table's), as in an incident's `affected`.

    A range begins with its first release and ends before the next known one; at the newest release it has no end.
    """
    if list(packages) == [table.callee]:
        hit = {callee for _, callee in pairs}
        return [{table.callee: text} for text in specifiers_of_runs(table.callees, hit)]
    if list(packages) == [table.caller]:
        hit = {caller for caller, _ in pairs}
        return [{table.caller: text} for text in specifiers_of_runs(table.callers, hit)]
    ranges = []
    by_caller = [(caller, frozenset(b for a, b in pairs if a == caller)) for caller in table.callers]
    for callees, group in groupby(by_caller, key=lambda pair: pair[1]):
        callers = {caller for caller, _ in group}
        if callees:
            for text in specifiers_of_runs(table.callers, callers):
                ranges += [
                    {table.caller: text, table.callee: other} for other in specifiers_of_runs(table.callees, callees)
                ]
    return ranges


def specifiers_of_runs(names: Sequence[str], hit: set[str] | frozenset[str]) -> list[str]:
    """Return the runs of the releases in `hit` as specifiers."""
    specifiers = []
    for inside, group in groupby(range(len(names)), key=lambda at: names[at] in hit):
        places = list(group)
        if inside:
            lower = f">={shorten_version(names[places[0]])}" if places[0] else ""
            after = places[-1] + 1
            upper = f"<{shorten_version(names[after])}" if after < len(names) else ""
            specifiers.append(",".join(part for part in (lower, upper) if part) or "*")
    return specifiers


def shorten_version(version: str) -> str:
    """Return `4.43` for `4.43.0`; other versions stay as they are."""
    release = Version(version)
    plain = version == release.base_version and len(release.release) == 3 and release.release[2] == 0
    return version.removesuffix(".0") if plain else version


def find_covered_releases(
    table: ContractTable, affected: Sequence[Mapping[str, SpecifierSet]], packages: Sequence[str]
) -> set[tuple[str, ...]]:
    """Return the releases of the table, on these packages, that an incident's ranges cover."""
    releases = {table.caller: table.callers, table.callee: table.callees}
    covered: set[tuple[str, ...]] = set()
    for combination in affected:
        sets = [
            [v for v in releases[name] if name not in combination or combination[name].contains(v)] for name in packages
        ]
        if len(sets) == 1:
            covered |= {(one,) for one in sets[0]}
        else:
            covered |= {(one, other) for one in sets[0] for other in sets[1]}
    return covered


def render_table_markdown(table: ContractTable) -> str:
    """Return the pairs as a Markdown table, newest callers first."""
    lines = [f"| {table.caller} | {table.callee} | |", "| --- | --- | --- |"]
    for first, last, row in reversed(table.rows):
        name = _run_text(table, table.caller, table.callers, first, last)
        for start, end, verdict in reversed(row):
            text = verdict.text.replace("|", "\\|").replace("\n", " ")
            quoted = f"`{text}`" if verdict.outcome is PairOutcome.BREAKS else text
            outcome = f"{verdict.outcome}: {quoted}" if text else str(verdict.outcome)
            lines.append(f"| {name} | {_run_text(table, table.callee, table.callees, start, end)} | {outcome} |")
            name = ""
    return "\n".join(lines) + "\n"


def render_table_text(table: ContractTable) -> str:
    """Return the pairs as a text table for a terminal, newest callers first."""
    rows = []
    for first, last, row in reversed(table.rows):
        name = _run_text(table, table.caller, table.callers, first, last)
        for start, end, verdict in reversed(row):
            callees = _run_text(table, table.callee, table.callees, start, end)
            rows.append((name, callees, str(verdict.outcome), verdict.text))
            name = ""
    return format_table((table.caller, table.callee, "", ""), rows)


def _run_text(table: ContractTable, package: str, names: Sequence[str], first: str, last: str) -> str:
    """Return a run as `4.43 to 4.47`, with the withdrawn releases in it."""
    run = _run(names, first, last)
    yanked = [name for name in run if (package, name) in table.yanked]
    text = f"{first} to {last}" if first != last else first
    if not yanked:
        return text
    return f"{text} (yanked{'' if len(run) == 1 else ': ' + ', '.join(yanked)})"
