"""The answer of `knowngood api --breaks`: which uses of other packages break, with the releases on both sides. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knowngood_facts.facts.atlas_answer import describe_spans, spans_of_mask
from knowngood_facts.facts.broken_use_table import BrokenUse, BrokenUseTable, UseFailure


@dataclass(frozen=True, kw_only=True)
class BrokenPair:
    """Uses of one package by another that break."""

    table: BrokenUseTable
    callee: str
    uses: tuple[BrokenUse, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a document of each use, with its releases as text."""
        for use in self.uses:
            yield {
                "caller": self.table.package,
                "callee": self.callee,
                "module": use.module,
                "uses": use.target,
                "keyword": use.detail if use.failure in {UseFailure.KEYWORD, UseFailure.OVERRIDE} else None,
                "unpacked_into": use.detail or None if use.failure is UseFailure.VALUES else None,
                "overridden": use.failure is UseFailure.OVERRIDE,
                "in": use.place or None,
                "fails": _failure(use),
                "callers": describe_releases(use.callers, self.table.releases),
                "callees": describe_releases(use.callees, self.table.callees[self.callee]),
            }

    def lines(self) -> Iterator[str]:
        """Yield a line of each use."""
        for use, row in zip(self.uses, self.rows(), strict=True):
            yield f"  {row['module']} ({row['callers']}): {describe_use(use)}"
            yield f"    {row['fails']}; breaks with {row['callee']} {row['callees']}"


def select_uses(
    uses: Mapping[str, Sequence[BrokenUse]], caller: int, callees: Mapping[str, int]
) -> dict[str, list[BrokenUse]]:
    """Return the uses in some of the caller's releases that some of the callees' releases break.

    `callees` has the releases of interest of each package; a package that it lacks is left out when it has any.
    """
    return {
        package: chosen
        for package, rows in uses.items()
        if (not callees or package in callees)
        and (chosen := [use for use in rows if use.callers & caller and use.callees & callees.get(package, -1)])
    }


def describe_use(use: BrokenUse) -> str:
    """Return what is used and how: `lib:run with fast=`, `lib:run unpacked into 4`, `lib:Base.run overridden ...`."""
    match use.failure:
        case UseFailure.KEYWORD:
            return f"{use.target} with {use.detail}="
        case UseFailure.VALUES:
            count = f"{use.detail[:-1]} or more" if use.detail.endswith("*") else use.detail
            return f"{use.target} unpacked into {count}"
        case UseFailure.OVERRIDE:
            return f"{use.target} overridden without {use.detail}="
    return use.target


def _failure(use: BrokenUse) -> str:
    if use.place:
        return f"fails when {use.place} runs"
    if use.reached:
        return f"fails at `import {use.module.partition('.')[0]}`"
    return f"fails at `import {use.module}`"


def describe_releases(mask: int, releases: Sequence[str]) -> str:
    """Return the releases of a mask as text: `until 4.38.2, 4.45.0 to 4.46.3`."""
    return describe_spans(spans_of_mask(mask, releases))
