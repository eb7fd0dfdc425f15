"""What `check` and `pick` say of incidents: a rule that forbids the combinations an incident concerns.

An incident that another rule says already is told through that rule. One without combinations, or of one package alone
whatever its use (so that some caller fails, not the package), is for `diagnose` and its page only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood import document
from knowngood.solving.rules import Rule

if TYPE_CHECKING:
    from knowngood.incidents.model import Incident

_RULE = re.compile(r"^rule: (\S+)$", re.MULTILINE)
"""Half of the files need not be parsed for more than this."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """Incidents as `check` tells them."""

    rules: tuple[Rule, ...]
    said_by: Mapping[str, tuple[str, ...]]
    """Rule's id -> the incidents that it says."""


def read(folder: Path) -> Told:
    """The incidents of a folder, read no further than is needed for this; `InputError` for a malformed one."""
    rules: list[Rule] = []
    said_by: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        said = _RULE.search(text)
        if said is not None:
            said_by.setdefault(said[1], []).append(path.stem)
        if said is not None or "\naffected:" not in text:
            continue
        label = f"incidents/{path.name}"
        data = document.plain(text, label)
        try:
            made = rule(path.stem, data)
        except (AttributeError, KeyError, TypeError, ValueError):
            from knowngood.incidents import reading

            reading.parse(text, label)
            raise
        if made is not None:
            rules.append(made)
    return Told(rules=tuple(rules), said_by={name: tuple(names) for name, names in said_by.items()})


def of(incident: Incident) -> Rule | None:
    """The rule that an incident is, when it was read as a whole."""
    affected = [{name: str(text) or "*" for name, text in item.items()} for item in incident.affected]
    fix = [{"change": dict(item.change), "note": item.note} for item in incident.fix]
    parts = {"title": incident.title, "because": incident.because, "when": incident.when, "unless": incident.unless}
    parts |= {"severity": str(incident.severity), "source": incident.source, "confidence": incident.confidence}
    return rule(incident.id, {**parts, "affected": affected, "fix": fix})


def rule(name: str, data: Mapping[str, Any]) -> Rule | None:
    """The rule that an incident (plain data) is; `None` when there is nothing to say of a combination."""
    when, severity = data.get("when", {}), data.get("severity")
    affected = [dict(item) for item in data.get("affected", []) if when or len(item) > 1]
    if severity == "harmless" or not affected:
        return None
    because = " ".join(data["because"].split())
    return Rule(
        id=name,
        kind="incident",
        require={},
        forbid=tuple(affected),
        given=dict(when),
        unless=dict(data.get("unless", {})),
        because=f"{' '.join(data['title'].split())}. {because}",
        source=tuple([data["source"]] if isinstance(data["source"], str) else data["source"]),
        confidence=data["confidence"],
        severity="warning" if severity == "silent" and not when else "error",
        silent=severity == "silent",
        fix=tuple({**item, "note": " ".join(item["note"].split())} for item in data["fix"]),
    )
