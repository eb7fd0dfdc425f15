"""`facts/<package>.json` as a file: read, joined with what is new, written in stable bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from knowngood.errors import InputError, Problem
from knowngood.harvest.artefact import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "knowngood/facts/1"


@dataclass
class Ledger:
    """The releases of one package that are known so far."""

    package: str
    reader: int
    releases: dict[str, dict[str, Any]] = field(default_factory=dict)

    def keep(self, version: str, entry: Mapping[str, Any]) -> bool:
        """Put a release in; `False` when it says nothing new (the date it was first read stays).

        A fact known before is not given up because this time it could not be read.
        """
        old = self.releases.get(version)
        new = dict(entry)
        if old is not None:
            new = _with_what_was_known(old, new)
            if {**old, "read": ""} == {**new, "read": ""}:
                return False
        self.releases[version] = new
        return True

    def dump(self) -> str:
        """The file's text: releases by version, one fact a line."""
        document = {
            "schema": SCHEMA,
            "package": self.package,
            "regenerate": f"knowngood harvest {self.package}",
            "reader": self.reader,
            "releases": {
                version: {
                    key: dict(sorted(value.items())) if isinstance(value, dict) else value
                    for key, value in self.releases[version].items()
                }
                for version in sorted(self.releases, key=Version)
            },
        }
        return lines(document, "") + "\n"

    def write(self, folder: Path) -> None:
        """Replace the package's file."""
        write_whole(folder / f"{self.package}.json", self.dump().encode())


def _with_what_was_known(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new entry, and of the old one the facts that could not be read this time."""
    if "artefact" in new["unknown"] and old["facts"]:
        retry = {"retry": True} if new.get("retry") else {}
        return {**{key: value for key, value in old.items() if key != "retry"}, "yanked": new["yanked"], **retry}
    if new.get("retry"):
        kept = {name: value for name, value in old["facts"].items() if name in new["unknown"]}
        unknown = {name: why for name, why in new["unknown"].items() if name not in kept}
        return {**new, "facts": new["facts"] | kept, "unknown": unknown}
    return new


def read_ledger(folder: Path, package: str) -> Ledger:
    """What the folder knows about a package; an empty ledger when it knows nothing."""
    path = folder / f"{package}.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        releases = document["releases"]
        reader = int(document["reader"])
    except FileNotFoundError:
        return Ledger(package=package, reader=0)
    except (ValueError, KeyError, TypeError) as error:
        text = f"this is not a facts file ({error}); restore it, or delete it to harvest it anew"
        raise InputError([Problem(file=str(path), line=1, column=1, text=text)]) from None
    return Ledger(package=package, reader=reader, releases=releases)


def lines(value: Any, indent: str) -> str:
    """JSON with every object opened, a key a line, and every list on one line."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    rows = [f"{inner}{json.dumps(str(key))}: {lines(item, inner)}" for key, item in value.items()]
    return "{\n" + ",\n".join(rows) + "\n" + indent + "}"
