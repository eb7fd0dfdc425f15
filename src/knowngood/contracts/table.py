"""The table of pairs that a contract gives: every release of the caller with every release of the callee. Pure.

`facts/contracts/<name>.json` holds it compressed: callers that fare alike are a run, and so are the callees of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

SILENT = "silently: "
"""How the words begin when the callee lacks what the caller would have used."""


class Outcome(StrEnum):
    """What happens to a pair."""

    WORKS = "works"
    BREAKS = "breaks"
    REFUSES = "refuses"
    """The caller's own gate (a version test, an import in a `try`) keeps it from the callee."""
    NOT_CALLED = "not called"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a pair, and the words: the exception, the gate, or why it is not called."""

    outcome: Outcome
    text: str = ""

    @property
    def silent(self) -> bool:
        """The caller looked for something of the callee's, did not find it, and went on."""
        return self.outcome is Outcome.NOT_CALLED and self.text.startswith(SILENT)


Row = tuple[tuple[str, str, Verdict], ...]
"""Runs of releases of the callee: first, last, verdict."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """All pairs of one contract."""

    contract: str
    caller: str
    callee: str
    callers: tuple[str, ...]
    callees: tuple[str, ...]
    rows: tuple[tuple[str, str, Row], ...]
    """Runs of releases of the caller: first, last, how they fare."""
    yanked: frozenset[tuple[str, str]] = frozenset()
    """Package and version of withdrawn releases."""

    def pairs(self) -> Iterator[tuple[str, str, Verdict]]:
        """Every pair."""
        for first, last, row in self.rows:
            for caller in _run(self.callers, first, last):
                for start, end, verdict in row:
                    for callee in _run(self.callees, start, end):
                        yield caller, callee, verdict

    def verdict(self, caller: str, callee: str) -> Verdict:
        """The verdict of one pair; `KeyError` for a release that is not in the table."""
        for one, other, verdict in self.pairs():
            if (one, other) == (caller, callee):
                return verdict
        raise KeyError((caller, callee))

    def affected(self, counts: Callable[[Verdict], bool]) -> set[tuple[str, str]]:
        """The pairs whose verdict counts."""
        return {(caller, callee) for caller, callee, verdict in self.pairs() if counts(verdict)}


def from_document(document: Mapping[str, Any]) -> Table:
    """The table in a facts file; `KeyError`, `TypeError` or `ValueError` when it is none."""
    sides = {side: document[side] for side in ("caller", "callee")}
    callers, callees = (tuple(side["releases"]) for side in sides.values())
    rows = []
    for item in document["pairs"]:
        first, last = item["caller"]
        row = tuple(
            (start, end, Verdict(outcome=Outcome(outcome), text=text)) for start, end, outcome, text in item["callee"]
        )
        rows.append((first, last, row))
    return Table(
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


def document(table: Table) -> list[dict[str, Any]]:
    """The runs of a table as `--json` and its facts file have them."""
    return [
        {
            "caller": [first, last],
            "callee": [[start, end, str(verdict.outcome), verdict.text] for start, end, verdict in row],
        }
        for first, last, row in table.rows
    ]


def compressed(
    callers: Sequence[str], callees: Sequence[str], verdict: Callable[[str, str], Verdict]
) -> tuple[tuple[str, str, Row], ...]:
    """The runs of a table, each as long as it can be."""
    rows = [(caller, _runs(callees, [verdict(caller, callee) for callee in callees])) for caller in callers]
    found = []
    for row, group in groupby(rows, key=lambda pair: pair[1]):
        names = [caller for caller, _ in group]
        found.append((names[0], names[-1], row))
    return tuple(found)


def _runs(names: Sequence[str], verdicts: Sequence[Verdict]) -> Row:
    found = []
    for verdict, group in groupby(zip(names, verdicts, strict=True), key=lambda pair: pair[1]):
        run = [name for name, _ in group]
        found.append((run[0], run[-1], verdict))
    return tuple(found)


def _run(names: Sequence[str], first: str, last: str) -> Sequence[str]:
    return names[names.index(first) : names.index(last) + 1]


def ranges(table: Table, pairs: set[tuple[str, str]], packages: Sequence[str]) -> list[dict[str, str]]:
    """These pairs as ranges over the packages (one or both of the table's), as an incident's `affected` has them.

    A range begins with its first release and ends before the next one that is known; it stays open at the newest.
    """
    if list(packages) == [table.callee]:
        hit = {callee for _, callee in pairs}
        return [{table.callee: text} for text in specifiers(table.callees, hit)]
    if list(packages) == [table.caller]:
        hit = {caller for caller, _ in pairs}
        return [{table.caller: text} for text in specifiers(table.callers, hit)]
    found = []
    by_caller = [(caller, frozenset(b for a, b in pairs if a == caller)) for caller in table.callers]
    for callees, group in groupby(by_caller, key=lambda pair: pair[1]):
        callers = {caller for caller, _ in group}
        if callees:
            for text in specifiers(table.callers, callers):
                found += [{table.caller: text, table.callee: other} for other in specifiers(table.callees, callees)]
    return found


def specifiers(names: Sequence[str], hit: set[str] | frozenset[str]) -> list[str]:
    """Runs of the releases that are hit, as specifiers."""
    found = []
    for inside, group in groupby(range(len(names)), key=lambda at: names[at] in hit):
        places = list(group)
        if inside:
            lower = f">={short(names[places[0]])}" if places[0] else ""
            after = places[-1] + 1
            upper = f"<{short(names[after])}" if after < len(names) else ""
            found.append(",".join(part for part in (lower, upper) if part) or "*")
    return found


def short(version: str) -> str:
    """`4.43.0` as `4.43`."""
    release = Version(version)
    plain = version == release.base_version and len(release.release) == 3 and release.release[2] == 0
    return version.removesuffix(".0") if plain else version


def covered(
    table: Table, affected: Sequence[Mapping[str, SpecifierSet]], packages: Sequence[str]
) -> set[tuple[str, ...]]:
    """What an incident's ranges cover of the table's releases, on these packages."""
    releases = {table.caller: table.callers, table.callee: table.callees}
    found: set[tuple[str, ...]] = set()
    for combination in affected:
        sets = [
            [v for v in releases[name] if name not in combination or combination[name].contains(v)] for name in packages
        ]
        if len(sets) == 1:
            found |= {(one,) for one in sets[0]}
        else:
            found |= {(one, other) for one in sets[0] for other in sets[1]}
    return found


def markdown(table: Table) -> str:
    """The pairs as a Markdown table: newest callers first."""
    lines = [f"| {table.caller} | {table.callee} | |", "| --- | --- | --- |"]
    for first, last, row in reversed(table.rows):
        name = _named(table, table.caller, table.callers, first, last)
        for start, end, verdict in reversed(row):
            text = verdict.text.replace("|", "\\|").replace("\n", " ")
            said = f"{verdict.outcome}: `{text}`" if verdict.outcome is Outcome.BREAKS else str(verdict.outcome)
            said += f": {text}" if text and verdict.outcome is not Outcome.BREAKS else ""
            lines.append(f"| {name} | {_named(table, table.callee, table.callees, start, end)} | {said} |")
            name = ""
    return "\n".join(lines) + "\n"


def plain(table: Table) -> str:
    """The pairs for a terminal."""
    from knowngood import table as tables

    rows = []
    for first, last, row in reversed(table.rows):
        name = _named(table, table.caller, table.callers, first, last)
        for start, end, verdict in reversed(row):
            callees = _named(table, table.callee, table.callees, start, end)
            rows.append((name, callees, str(verdict.outcome), verdict.text))
            name = ""
    return tables.text((table.caller, table.callee, "", ""), rows)


def _named(table: Table, package: str, names: Sequence[str], first: str, last: str) -> str:
    run = _run(names, first, last)
    yanked = [name for name in run if (package, name) in table.yanked]
    said = f"{first} to {last}" if first != last else first
    if not yanked:
        return said
    return f"{said} (yanked{'' if len(run) == 1 else ': ' + ', '.join(yanked)})"
