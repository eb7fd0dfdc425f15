"""`audit.yaml`: known vulnerabilities that are accepted, each with a reason and a last day. Pure.

- id: CVE-2026-1234          # or "*", every one of the package
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

from knowngood import document
from knowngood.errors import InputError, Problem

FILE = "audit.yaml"
_KEYS = ("id", "package", "because", "until")


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """One entry: what is accepted, of which package, why, and the last day on which it holds."""

    id: str
    package: str
    because: str
    until: date
    line: int

    def covers(self, package: str, ids: Collection[str]) -> bool:
        """Whether the entry is about this vulnerability, which may have several names."""
        return self.package == package and any(fnmatch.fnmatchcase(name, self.id) for name in ids)


def parse(text: str, file: str, today: date) -> list[Accepted]:
    """Read the list; raises `InputError` with every defect, an entry whose day has passed among them."""
    read = document.parse(text, file)
    if read.data is None:
        return []
    if not isinstance(read.data, list):
        raise InputError([read.problem((), f"a list of entries stands here, each with {', '.join(_KEYS)}")])
    problems: list[Problem] = []
    found = []
    for index, entry in enumerate(read.data):
        wrong = _problems(read, index, entry, today)
        problems += wrong
        if not wrong:
            line = read.marks[index,].line + 1
            found.append(Accepted(**{**entry, "until": date.fromisoformat(entry["until"])}, line=line))
    if problems:
        raise InputError(problems)
    return found


def _problems(read: document.Document, index: int, entry: Any, today: date) -> list[Problem]:
    if not isinstance(entry, dict):
        return [read.problem((index,), f"an entry has the keys {', '.join(_KEYS)}")]
    found = [
        read.problem((index, key), f"there is no key {key!r}; an entry has {', '.join(_KEYS)}", key=True)
        for key in entry
        if key not in _KEYS
    ]
    found += [
        read.problem((index, key), f"the entry has no {key}; write one")
        for key in _KEYS
        if not isinstance(entry.get(key), str) or not entry[key].strip()
    ]
    if found:
        return found
    try:
        until = date.fromisoformat(entry["until"])
    except ValueError:
        return [read.problem((index, "until"), f"{entry['until']!r} is not a day; write one like 2027-05-01")]
    if until < today:
        text = (
            f"{entry['id']} of {entry['package']} was accepted until {until}; look at it again, then renew or remove it"
        )
        return [read.problem((index, "until"), text)]
    return []
