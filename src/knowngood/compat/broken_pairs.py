"""Findings of `check` about uses of one package by another that their releases break, from the stored tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from knowngood.compat.findings import Finding
from knowngood.compat.value_domain import ReleaseDomain
from knowngood.facts.broken_use_table import BrokenUse, BrokenUseTable, UseFailure

USES = "uses:"
"""With this begins the id of a finding about a pair."""

ReadTable = Callable[[str], BrokenUseTable | None]
"""Returns the table of a caller, or `None` when there is none."""


def no_broken_uses(_: str) -> BrokenUseTable | None:
    """Return `None`: no caller has a table."""


_SHOWN = 2
"""So many uses of a pair are named; `knowngood breaks` lists all."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A release of a caller and one of a callee, as places in the lists of a table."""

    table: BrokenUseTable
    callee: str
    mine: int
    theirs: int

    @property
    def uses(self) -> list[BrokenUse]:
        """The uses that break at an import: first of the package, then of a module that it does not import itself."""
        broken = (use for use in self.table.uses[self.callee] if self._is_broken(use, self.mine, self.theirs))
        return sorted(broken, key=lambda use: not self.stops_import(use))

    def stops_import(self, use: BrokenUse) -> bool:
        """Return whether a use that breaks makes the import of the whole package fail."""
        return bool(use.reached >> self.mine & 1)

    def nearest_callee(self) -> str | None:
        """Return the nearest release of the callee with which this caller can be imported, or `None`."""
        releases = self.table.callees[self.callee]
        places = _by_distance(self.theirs, releases)
        return next((releases[place] for place in places if self._is_importable(self.mine, place)), None)

    def nearest_caller(self) -> str | None:
        """Return the nearest release of the caller that can be imported with this callee, or `None`."""
        releases = self.table.releases
        places = _by_distance(self.mine, releases)
        return next((releases[place] for place in places if self._is_importable(place, self.theirs)), None)

    def _is_importable(self, mine: int, theirs: int) -> bool:
        uses = self.table.uses[self.callee]
        return not any(use.reached >> mine & 1 and self._is_broken(use, mine, theirs) for use in uses)

    @staticmethod
    def _is_broken(use: BrokenUse, mine: int, theirs: int) -> bool:
        return not use.place and bool(use.callers >> mine & 1 and use.callees >> theirs & 1)


def find_broken_pairs(versions: Mapping[str, str], read: ReadTable) -> list[Finding]:
    """Return a finding for each pair of these releases of which one needs at an import what the other lacks.

    It is an error when importing the caller fails, and an information when only a module that this does not import
    fails. Uses inside functions are left to `knowngood breaks`: much of such code never runs with these releases.

    Args:
        versions: package -> release, of the packages whose release is settled.
        read: gives the table of a caller.
    """
    findings = []
    for caller, version in versions.items():
        table = read(caller)
        mine = None if table is None else _place_of(version, table.releases)
        if table is None or mine is None:
            continue
        for callee, releases in table.callees.items():
            theirs = _place_of(versions[callee], releases) if callee in versions else None
            if theirs is None:
                continue
            pair = _Pair(table=table, callee=callee, mine=mine, theirs=theirs)
            if uses := pair.uses:
                findings.append(_pair_finding(pair, uses))
    return findings


def _pair_finding(pair: _Pair, uses: Sequence[BrokenUse]) -> Finding:
    caller, callee = pair.table.package, pair.callee
    mine, theirs = pair.table.releases[pair.mine], pair.table.callees[callee][pair.theirs]
    sentences = [_describe_use(pair, use) for use in uses[:_SHOWN]]
    because = f"{caller} {mine} " + "; it ".join(sentences)
    if len(uses) > _SHOWN:
        because += f"; and {len(uses) - _SHOWN} more (`knowngood breaks {caller}=={mine} {callee}=={theirs}`)"
    stops = pair.stops_import(uses[0])
    fixes = [
        {"change": {name: version}, "note": note}
        for name, version, note in (
            (callee, pair.nearest_callee(), f"the nearest release with which {caller} {mine} can be imported"),
            (caller, pair.nearest_caller(), f"the nearest release that can be imported with {callee} {theirs}"),
        )
        if stops and version is not None
    ]
    return Finding(
        id=f"{USES}{caller}:{callee}",
        kind="fact",
        severity="error" if stops else "info",
        packages={caller: mine, callee: theirs},
        because=because,
        source=(f"the sources of {caller} {mine} and {callee} {theirs}",),
        confidence="artefact",
        fix=tuple(fixes),
    )


def _describe_use(pair: _Pair, use: BrokenUse) -> str:
    """Return ``imports `x` of `m`, gone since transformers 4.39.0: fails at `import trl.core` ``."""
    releases = pair.table.callees[pair.callee]
    since = _describe_gap(use.callees, pair.theirs, pair.callee, releases)
    module, colon, name = use.target.partition(":")
    if use.failure is UseFailure.KEYWORD:
        what = f"passes `{use.detail}` to `{use.target.replace(':', '.')}`, a parameter {since}"
    elif use.failure is UseFailure.VALUES:
        what = f"unpacks what `{use.target.replace(':', '.')}` returns into {use.detail} names, another number {since}"
    elif colon:
        what = f"uses `{name}` of `{module}`, {since}"
    else:
        what = f"imports `{module}`, {since}"
    if pair.stops_import(use):
        top = use.module.partition(".")[0]
        return f"{what}: fails at `import {top}`" + (f" (in `{use.module}`)" if top != use.module else "")
    return f"{what}: fails at `import {use.module}`"


def _describe_gap(missing: int, place: int, package: str, releases: Sequence[str]) -> str:
    """Say which releases around this one lack it: `gone since transformers 4.39.0`, `new in transformers 4.46.0`."""
    first = last = place
    while first and missing >> (first - 1) & 1:
        first -= 1
    while missing >> (last + 1) & 1:
        last += 1
    if last + 1 == len(releases):
        return f"gone since {package} {releases[first]}"
    if not first:
        return f"new in {package} {releases[last + 1]}"
    return f"not in {package} {releases[first]}" + (f" to {releases[last]}" if last > first else "")


def _by_distance(place: int, releases: Sequence[str]) -> list[int]:
    """Return the other places, the nearest first; of two as near, the older."""
    return sorted((other for other in range(len(releases)) if other != place), key=lambda other: abs(other - place))


def _place_of(version: str, releases: Sequence[str]) -> int | None:
    if version in releases:
        return releases.index(version)
    same = ReleaseDomain("", releases).mask(f"=={version}")
    return same.bit_length() - 1 if same else None
