"""What follows from the tables of contracts: the range of an incident, and docs/contract-tables.md. Pure.

An incident affects the pairs of releases that break with an exception which one of its signatures matches. A silent or
harmless incident has no exception in the log; it affects the pairs whose failing import the caller catches, else those
where the caller silently finds nothing to call. An incident may name only one of the two packages; then its range is
that of the releases which it affects together with at least one release of the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from knowngood.compat.incident import Incident, IncidentSeverity
from knowngood.compat.log_signature import normalize_log
from knowngood.facts import contract_table
from knowngood.facts.contract import Contract
from knowngood.facts.contract_table import ContractTable, PairOutcome, PairVerdict, find_covered_releases, find_ranges

_CAUGHT = ("ImportError", "ModuleNotFoundError")


@dataclass(frozen=True, kw_only=True)
class RangeDrift:
    """The difference between the committed range of an incident and the one that follows from its contract's table."""

    incident: str
    contract: str
    generated: tuple[Mapping[str, str], ...]
    missing: tuple[str, ...]
    """The releases that are affected by the table, but not in the committed range."""
    surplus: tuple[str, ...]
    """The releases that are in the committed range, but not affected by the table."""

    def __str__(self) -> str:
        lines = [f"incidents/{self.incident}.yaml: affected is not what contract {self.contract} says"]
        lines += [f"- {text}" for text in self.surplus[:5]] + ["- ..."] * (len(self.surplus) > 5)
        lines += [f"+ {text}" for text in self.missing[:5]] + ["+ ..."] * (len(self.missing) > 5)
        if not self.generated:
            return "\n".join([*lines, "no pair of the table matches a signature of the incident"])
        return "\n".join([*lines, "the range has to be:", render_affected(self.generated).rstrip()])


def find_affected_pairs(incident: Incident, table: ContractTable) -> set[tuple[str, str]]:
    """Return the pairs of the table that an incident affects: (caller's version, callee's version)."""

    def matches(verdict: PairVerdict) -> bool:
        error = normalize_log(verdict.text.encode())
        return verdict.outcome is PairOutcome.BREAKS and any(
            signature.search(error) for signature in incident.signatures
        )

    broken = table.affected(matches)
    if broken or incident.severity is IncidentSeverity.FAILURE:
        return broken
    caught = table.affected(lambda it: it.outcome is PairOutcome.REFUSES and it.text.startswith(_CAUGHT))
    return caught or table.affected(lambda it: it.outcome is PairOutcome.NOT_CALLED and it.silent)


def range_packages(incident: Incident, table: ContractTable) -> list[str]:
    """Return those of the table's two packages that the incident's range names; both when it has no range yet."""
    named = {name for combination in incident.affected for name in combination}
    both = [table.caller, table.callee]
    return [name for name in both if name in named] or both


def generate_range(incident: Incident, table: ContractTable) -> list[dict[str, str]]:
    """Return the `affected` that follows from the table."""
    return find_ranges(table, find_affected_pairs(incident, table), range_packages(incident, table))


def find_range_drift(incident: Incident, table: ContractTable) -> RangeDrift | None:
    """Return how the committed range differs from the table; `None` when it covers the same releases."""
    names = range_packages(incident, table)
    places = [[table.caller, table.callee].index(name) for name in names]
    wanted = {tuple(pair[place] for place in places) for pair in find_affected_pairs(incident, table)}
    has = find_covered_releases(table, incident.affected, names)
    if wanted and has == wanted:
        return None
    return RangeDrift(
        incident=incident.id,
        contract=table.contract,
        generated=tuple(generate_range(incident, table)),
        missing=_release_texts(names, wanted - has),
        surplus=_release_texts(names, has - wanted),
    )


def _release_texts(names: Sequence[str], releases: set[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(
        ", ".join(f"{name} {version}" for name, version in zip(names, one, strict=True)) for one in sorted(releases)
    )


def render_affected(items: Sequence[Mapping[str, str]]) -> str:
    """Render `affected` as an incident's file has it."""
    lines = ["affected:"]
    for item in items:
        inner = ", ".join(f'{name}: "{text}"' for name, text in item.items())
        lines.append(f"  - {{{inner}}}")
    return "\n".join(lines) + "\n"


def replace_affected(text: str, items: Sequence[Mapping[str, str]]) -> str:
    """Return the text of an incident's file with another `affected`; without one, it is added before `because`."""
    affected = render_affected(items)
    changed, count = re.subn(
        r"^affected:.*\n(?:[ -].*\n)*", affected.replace("\\", "\\\\"), text, count=1, flags=re.MULTILINE
    )
    return changed if count else re.sub(r"^because:", affected + "because:", text, count=1, flags=re.MULTILINE)


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


def render_contract_page(contracts: Mapping[str, Contract], tables: Mapping[str, ContractTable]) -> str:
    """Render docs/contract-tables.md: a summary of all contracts, then the table of each."""
    lines = [_BANNER, _HEAD]
    known = [name for name in contracts if name in tables]
    lines += [_row(name, tables[name]) for name in known]
    for name in known:
        lines += [f"\n## {name}\n\n{contracts[name].title}.\n\n", contract_table.render_table_markdown(tables[name])]
    return "".join(lines)


def _row(name: str, table: ContractTable) -> str:
    counts = dict.fromkeys(PairOutcome, 0)
    for _, _, verdict in table.pairs():
        counts[verdict.outcome] += 1
    outcomes = (PairOutcome.WORKS, PairOutcome.BREAKS, PairOutcome.REFUSES, PairOutcome.NOT_CALLED)
    cells = [f"{sum(counts.values()):,}", *(f"{counts[outcome]:,}" for outcome in outcomes)]
    return f"| [{name}](#{name}) | {' | '.join(cells)} |\n"
