"""docs/contract-tables.md: the table of pairs of every contract, for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from knowngood.contracts import table as contract_table
from knowngood.contracts.table import Outcome

if TYPE_CHECKING:
    from knowngood.contracts.model import Contract
    from knowngood.contracts.table import Table

_BANNER = """\
<!-- Generated from contracts/ and facts/contracts/ by `knowngood render`; do not edit. -->

# Which releases work together

How one package uses another, judged on every pair of their published releases: the caller's source is read, and what it
calls is bound to the callee's own signature of that release. [contracts.md](contracts.md) tells how, and its limits.
"Works" is said of this use only. An exception is what Python says of that call; "refuses" is the caller's own test of
the version or an import whose failure it catches; "silently" means that nothing fails and nothing is called.
Newest releases first; runs of releases that fare alike are joined.

"""
_HEAD = """\
| contract | pairs | works | breaks | refuses | not called |
| --- | --- | --- | --- | --- | --- |
"""


def page(contracts: Mapping[str, Contract], tables: Mapping[str, Table]) -> str:
    """The whole page."""
    lines = [
        _BANNER,
        "| contract | pairs | works | breaks | refuses | not called |\n| --- | --- | --- | --- | --- | --- |\n",
    ]
    known = [name for name in contracts if name in tables]
    lines += [_row(name, tables[name]) for name in known]
    for name in known:
        lines += [f"\n## {name}\n\n{contracts[name].title}.\n\n", contract_table.markdown(tables[name])]
    return "".join(lines)


def _row(name: str, table: Table) -> str:
    counts = dict.fromkeys(Outcome, 0)
    for _, _, verdict in table.pairs():
        counts[verdict.outcome] += 1
    outcomes = (Outcome.WORKS, Outcome.BREAKS, Outcome.REFUSES, Outcome.NOT_CALLED)
    cells = [f"{sum(counts.values()):,}", *(f"{counts[outcome]:,}" for outcome in outcomes)]
    return f"| [{name}](#{name}) | {' | '.join(cells)} |\n"
