"""`facts/<package>.json` as a file: read, joined with what is new, written in stable bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from knowngood.core.local_files import write_atomically
from knowngood.facts.fact_document import FACTS_SCHEMA, load_fact_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass
class FactFile:
    """The releases of one package that are known so far."""

    package: str
    reader: int
    """The revision of the reader that read them."""
    releases: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_release(self, version: str, entry: Mapping[str, Any]) -> bool:
        """Add a release and return whether its entry says anything new.

        An entry that says nothing new is dropped, so the date of the first reading stays. A fact that was known before
        is kept when this time it could not be read.
        """
        old = self.releases.get(version)
        new = dict(entry)
        if old is not None:
            new = _with_known_facts(old, new)
            if {**old, "read": ""} == {**new, "read": ""}:
                return False
        self.releases[version] = new
        return True

    def render(self) -> str:
        """Return the file's text: releases ordered by version, one fact a line."""
        document = {
            "schema": FACTS_SCHEMA,
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
        return render_json(document) + "\n"

    def write(self, folder: Path) -> None:
        """Replace the package's file in `folder`."""
        write_atomically(folder / f"{self.package}.json", self.render())


def _with_known_facts(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the new entry together with the facts of the old one that could not be read this time."""
    if "artefact" in new["unknown"] and old["facts"]:
        retry = {"retry": True} if new.get("retry") else {}
        return {**{key: value for key, value in old.items() if key != "retry"}, "yanked": new["yanked"], **retry}
    if new.get("retry"):
        kept = {name: value for name, value in old["facts"].items() if name in new["unknown"]}
        unknown = {name: reason for name, reason in new["unknown"].items() if name not in kept}
        return {**new, "facts": new["facts"] | kept, "unknown": unknown}
    return new


def read_fact_file(folder: Path, package: str) -> FactFile:
    """Read a package's file, or return an empty one when there is none; `InputError` when it is damaged."""
    try:
        document = load_fact_document(folder / f"{package}.json")
    except FileNotFoundError:
        return FactFile(package=package, reader=0)
    return FactFile(package=package, reader=document["reader"], releases=document["releases"])


def render_json(value: Any, indent: str = "") -> str:
    """Return JSON in which every key has its own line and every list is on one line."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    rows = [f"{inner}{json.dumps(str(key))}: {render_json(item, inner)}" for key, item in value.items()]
    return "{\n" + ",\n".join(rows) + "\n" + indent + "}"
