"""`docker/audit.yaml`: the known vulnerabilities that are accepted, each with a reason and a last day. Pure.

- id: CVE-2026-1234          # or "*": all of the package
  package: linux-libc-dev
  because: headers only, no kernel is in the image
  until: 2027-05-01
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from typing import Any

from knowngood.core import yaml_document
from knowngood.core.errors import InputError, InputProblem

ALLOWLIST_FILE = "docker/audit.yaml"
_KEYS = ("id", "package", "because", "until")


@dataclass(frozen=True, kw_only=True)
class AcceptedVulnerability:
    """One entry: which vulnerability of which package is accepted, why, and until which day."""

    id: str
    package: str
    because: str
    until: date
    line: int

    def covers(self, package: str, ids: Collection[str]) -> bool:
        """Return whether the entry accepts a vulnerability with these names (an id and its aliases)."""
        return self.package == package and any(fnmatch.fnmatchcase(name, self.id) for name in ids)


def parse_allowlist(text: str, file: str, today: date) -> list[AcceptedVulnerability]:
    """Parse the list; `InputError` with every defect, such as an entry whose last day has passed."""
    document = yaml_document.parse_yaml(text, file)
    if document.data is None:
        return []
    if not isinstance(document.data, list):
        raise InputError([document.problem((), f"write a list of entries, each with {', '.join(_KEYS)}")])
    problems: list[InputProblem] = []
    accepted = []
    for index, entry in enumerate(document.data):
        defects = _problems(document, index, entry, today)
        problems += defects
        if not defects:
            line = document.marks[index,].line + 1
            accepted.append(AcceptedVulnerability(**{**entry, "until": date.fromisoformat(entry["until"])}, line=line))
    if problems:
        raise InputError(problems)
    return accepted


def _problems(document: yaml_document.YamlDocument, index: int, entry: Any, today: date) -> list[InputProblem]:
    if not isinstance(entry, dict):
        return [document.problem((index,), f"write an entry with the keys {', '.join(_KEYS)}")]
    defects = [
        document.problem((index, key), f"there is no key {key!r}; an entry has {', '.join(_KEYS)}", key=True)
        for key in entry
        if key not in _KEYS
    ]
    defects += [
        document.problem((index, key), f"the entry has no {key}; add it")
        for key in _KEYS
        if not isinstance(entry.get(key), str) or not entry[key].strip()
    ]
    if defects:
        return defects
    try:
        until = date.fromisoformat(entry["until"])
    except ValueError:
        return [document.problem((index, "until"), f"{entry['until']!r} is not a date; write it as 2027-05-01")]
    if until < today:
        text = (
            f"{entry['id']} of {entry['package']} was accepted until {until}; review it, then renew or remove the entry"
        )
        return [document.problem((index, "until"), text)]
    return []
