"""docs/broken-pairs.md: with which releases of transformers the packages around it cannot be imported. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from knowngood_facts.facts.broken_use_answer import describe_releases
from knowngood_facts.facts.broken_use_table import BrokenUse, BrokenUseTable, UseFailure

_CALLEE = "transformers"
_NAMES = 3
"""So many names are shown in a cell."""

_HEAD = f"""<!-- Generated from facts/atlas/ by `knowngood render`; do not edit. -->

# Which releases break an import of {_CALLEE}

For each package of the atlas that imports {_CALLEE}: its releases, and those of {_CALLEE} that lack a name which
one of its modules imports. "`import PACKAGE`" fails for everybody; a module fails for those who import it. Uses inside
functions, and of other packages, are listed by `knowngood api --breaks PACKAGE`. [atlas.md](atlas.md) says how we know.
"""


def render_broken_pairs(tables: Sequence[BrokenUseTable]) -> str:
    """Return the page; a package whose modules all go with every release of transformers is left out."""
    parts = [_HEAD]
    for table in tables:
        rows = list(_rows(table)) if _CALLEE in table.callees else []
        if not rows:
            continue
        parts += [f"\n## {table.package}\n", f"| {table.package} | fails with {_CALLEE} | what fails | for want of |"]
        parts += ["| --- | --- | --- | --- |", *rows]
    return "\n".join(parts) + "\n"


def _rows(table: BrokenUseTable) -> Iterator[str]:
    """Yield the rows of one package: uses with the same releases on both sides and the same failure are one row."""
    uses = [use for use in table.uses[_CALLEE] if not use.place]
    failures = []
    for use in uses:
        top = use.module.partition(".")[0]
        for releases, what in ((use.reached, f"`import {top}`"), (use.callers & ~use.reached, f"`{use.module}`")):
            if releases:
                failures.append((releases, use.callees, what, _name(use)))
    # What fails for everybody first, then the newest releases.
    failures.sort(key=lambda row: (not row[2].startswith("`import"), -row[0].bit_length(), -row[0], -row[1], row[2:]))
    for (releases, callees), group in groupby(failures, key=lambda row: row[:2]):
        rows = list(group)
        failing = list(dict.fromkeys(row[2] for row in rows))
        names = list(dict.fromkeys(row[3] for row in rows))
        yield (
            f"| {describe_releases(releases, table.releases)} | {describe_releases(callees, table.callees[_CALLEE])} "
            f"| {_shorten(failing)} | {_shorten(names)} |"
        )


def _name(use: BrokenUse) -> str:
    name = f"`{use.target.partition(':')[2] or use.target}`"
    return f"{name} with `{use.detail}`" if use.failure is UseFailure.KEYWORD else name


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
