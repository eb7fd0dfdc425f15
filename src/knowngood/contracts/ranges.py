"""The range of an incident, generated from its contract's table, and whether the committed one says the same. Pure.

Which pairs concern an incident: those that break with an exception that one of its signatures matches. A silent or
harmless incident has no exception in the log; it concerns the pairs whose failing import the caller catches, else those
where the caller silently finds nothing to call. An incident may name one of the two packages only; then its range is
that of the releases which concern it with at least one release of the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from knowngood.contracts.table import Outcome, Table, Verdict, covered, ranges
from knowngood.diagnosing.signature import plain
from knowngood.incidents.model import Incident, Severity

_CAUGHT = ("ImportError", "ModuleNotFoundError")


@dataclass(frozen=True, kw_only=True)
class Drift:
    """An incident whose range is not that of its contract's table."""

    incident: str
    contract: str
    generated: tuple[Mapping[str, str], ...]
    missing: tuple[str, ...]
    """Releases that the table says are concerned and the range does not cover."""
    surplus: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"incidents/{self.incident}.yaml: affected is not what contract {self.contract} says"]
        lines += [f"- {text}" for text in self.surplus[:5]] + ["- ..."] * (len(self.surplus) > 5)
        lines += [f"+ {text}" for text in self.missing[:5]] + ["+ ..."] * (len(self.missing) > 5)
        if not self.generated:
            return "\n".join([*lines, "no pair of the table matches a signature of the incident"])
        return "\n".join([*lines, "it follows:", block(self.generated).rstrip()])


def concerned(incident: Incident, table: Table) -> set[tuple[str, str]]:
    """The pairs of the table that the incident is about."""

    def matches(verdict: Verdict) -> bool:
        said = plain(verdict.text.encode())
        return verdict.outcome is Outcome.BREAKS and any(signature.search(said) for signature in incident.signatures)

    found = table.affected(matches)
    if found or incident.severity is Severity.FAILURE:
        return found
    caught = table.affected(lambda it: it.outcome is Outcome.REFUSES and it.text.startswith(_CAUGHT))
    return caught or table.affected(lambda it: it.outcome is Outcome.NOT_CALLED and it.silent)


def packages(incident: Incident, table: Table) -> list[str]:
    """Those of the table's packages that the incident's range is about; both when it has none yet."""
    named = {name for combination in incident.affected for name in combination}
    both = [table.caller, table.callee]
    return [name for name in both if name in named] or both


def generated(incident: Incident, table: Table) -> list[dict[str, str]]:
    """What `affected` has to be."""
    return ranges(table, concerned(incident, table), packages(incident, table))


def drift(incident: Incident, table: Table) -> Drift | None:
    """How the committed range differs from the table; `None` when it covers the same releases."""
    names = packages(incident, table)
    places = [[table.caller, table.callee].index(name) for name in names]
    wanted = {tuple(pair[place] for place in places) for pair in concerned(incident, table)}
    has = covered(table, incident.affected, names)
    if wanted and has == wanted:
        return None
    return Drift(
        incident=incident.id,
        contract=table.contract,
        generated=tuple(generated(incident, table)),
        missing=_told(names, wanted - has),
        surplus=_told(names, has - wanted),
    )


def _told(names: Sequence[str], releases: set[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(
        ", ".join(f"{name} {version}" for name, version in zip(names, one, strict=True)) for one in sorted(releases)
    )


def block(items: Sequence[Mapping[str, str]]) -> str:
    """`affected` as it stands in an incident's file."""
    lines = ["affected:"]
    for item in items:
        inner = ", ".join(f'{name}: "{text}"' for name, text in item.items())
        lines.append(f"  - {{{inner}}}")
    return "\n".join(lines) + "\n"


def replaced(text: str, items: Sequence[Mapping[str, str]]) -> str:
    """An incident's file with another `affected`; it is put before `because` when there was none."""
    made = block(items)
    changed, count = re.subn(
        r"^affected:.*\n(?:[ -].*\n)*", made.replace("\\", "\\\\"), text, count=1, flags=re.MULTILINE
    )
    return changed if count else re.sub(r"^because:", made + "because:", text, count=1, flags=re.MULTILINE)
