"""The answer of `knowngood breaks`: which uses of other packages break, with the releases on both sides. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knowngood.facts.atlas_answer import ReleaseSpan, describe_spans, spans_of_mask
from knowngood.facts.atlas_lookup import AtlasLookup
from knowngood.facts.broken_uses import BrokenUse


@dataclass(frozen=True, kw_only=True)
class BrokenPair:
    """Uses of one package by another that break."""

    caller: AtlasLookup
    callee: AtlasLookup
    uses: tuple[BrokenUse, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a document of each use, with its releases as text."""
        for use in self.uses:
            yield {
                "caller": self.caller.file.package,
                "callee": self.callee.file.package,
                "module": use.module,
                "uses": use.target,
                "keyword": use.keyword or None,
                "in": use.place or None,
                "fails": _failure(use),
                "callers": _text(use.callers, self.caller),
                "callees": _text(use.callees, self.callee),
            }

    def lines(self) -> Iterator[str]:
        """Yield a line of each use."""
        for row in self.rows():
            what = row["uses"] + (f" with {row['keyword']}=" if row["keyword"] else "")
            yield f"  {row['module']} ({row['callers']}): {what}"
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


def _failure(use: BrokenUse) -> str:
    if use.place:
        return f"fails when {use.place} runs"
    if use.reached:
        return f"fails at `import {use.module.partition('.')[0]}`"
    return f"fails at `import {use.module}`"


def _text(mask: int, lookup: AtlasLookup) -> str:
    spans: tuple[ReleaseSpan, ...] = spans_of_mask(mask, lookup.file.releases)
    return describe_spans(spans)
