"""All harvested facts as plain tables, the way rules name them: package, version, fact.

`knowngood.facts` gives one package typed; rules name facts by text and need all packages in a few milliseconds.
Reading is one function at the edge (`read`); the rest is pure. What is missing is unknown, never an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

DRIVERS = "drivers"
"""The one table whose "releases" are CUDA's, not a distribution's."""

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(\[[^\]]*\])?\s*([^;]*)")


@dataclass(frozen=True, kw_only=True)
class Factbook:
    """Package -> version -> what was harvested, as in the files."""

    tables: Mapping[str, Mapping[str, Mapping[str, Any]]]
    left_out: tuple[str, ...] = ()
    """Why a file could not be used, a sentence each."""
    _derived: dict[tuple[str, str, str], Any] = field(default_factory=dict, repr=False)

    @property
    def packages(self) -> list[str]:
        """The distributions there are facts about."""
        return [name for name in self.tables if name != DRIVERS]

    def versions(self, package: str) -> list[str]:
        """The releases of a package, as in its file."""
        return list(self.tables.get(package, ()))

    def fact(self, package: str, version: str, name: str) -> Any:
        """A fact, or `None`: not known (then `reason` has why), or no such thing in that release."""
        entry = self.tables.get(package, {}).get(version)
        if entry is None:
            return None
        if (package, name) == ("torch", "driver_minimum"):
            return self.fact(DRIVERS, str(entry["facts"].get("cuda")), "minimum")
        if name.startswith("requires:"):
            return self.requires(package, version).get(name.removeprefix("requires:"))
        if ":" in name:
            name, _, key = name.partition(":")
            return (entry["facts"].get(name) or {}).get(key)
        return entry["facts"].get(name)

    def reason(self, package: str, version: str, name: str) -> str | None:
        """Why a fact is not known; `None` when it is, or when the release has no such thing."""
        entry = self.tables.get(package, {}).get(version)
        if entry is None:
            return f"there are no facts about {package} {version}"
        if (package, name) == ("torch", "driver_minimum"):
            cuda = entry["facts"].get("cuda")
            known = cuda is not None and cuda in self.tables.get(DRIVERS, {})
            return None if known else f"there is no least driver for CUDA {cuda} in the facts"
        name = name.partition(":")[0]
        if name in entry["facts"]:
            return None
        unknown = entry.get("unknown", {})
        found = unknown.get(name) or unknown.get("artefact")
        return str(found) if found else None

    def requires(self, package: str, version: str) -> Mapping[str, str]:
        """What a release requires: canonical name -> specifier without extras."""
        entry = self.tables.get(package, {}).get(version)
        raw = entry["facts"].get("requires") if entry else None
        if not raw:
            return {}
        key = (package, version, "requires")
        known = self._derived.get(key)
        if known is None:
            pairs = raw.items() if isinstance(raw, Mapping) else map(_split, raw)
            known = self._derived[key] = {name: _bare(text) for name, text in pairs}
        found: Mapping[str, str] = known
        return found

    def source(self, package: str, version: str) -> str:
        """What a release's facts were read from, for people."""
        entry = self.tables.get(package, {}).get(version, {})
        artefact = entry.get("artefact") or f"{package} {version}"
        return f"{artefact}, read {entry['read']}" if "read" in entry else str(artefact)

    def yanked(self, package: str, version: str) -> bool:
        """Whether the registry withdrew a release."""
        return bool(self.tables.get(package, {}).get(version, {}).get("yanked"))

    def every(self, package: str, name: str) -> Iterator[Any]:
        """A fact over all releases of a package that have it."""
        for version in self.versions(package):
            value = self.fact(package, version, name)
            if value is not None:
                yield value

    def latest(self, package: str) -> str | None:
        """The newest release, pre-releases only where there is nothing else."""
        known = sorted(map(Version, self.versions(package)))
        final = [version for version in known if not version.is_prerelease]
        return str((final or known)[-1]) if known else None

    def of(self, packages: Collection[str]) -> Factbook:
        """The facts of these packages and of what they require."""
        wanted, left = {DRIVERS}, set(packages)
        while left:
            name = left.pop()
            wanted.add(name)
            left |= {other for version in self.versions(name) for other in self.requires(name, version)} - wanted
        return Factbook(tables={name: table for name, table in self.tables.items() if name in wanted})

    def with_variant(self, package: str, version: str, local: str, facts: Mapping[str, Any], why: str) -> Factbook:
        """The same with a build of a release from elsewhere, of which only `facts` are known to hold."""
        table = dict(self.tables[package])
        original = table[version]
        kept = {name: original["facts"][name] for name in _SAME_IN_EVERY_BUILD if name in original["facts"]}
        lost = dict.fromkeys((name for name in original["facts"] if name not in kept and name not in facts), why)
        table[f"{version}+{local}"] = {**original, "facts": {**kept, **facts}, "unknown": lost}
        return Factbook(tables={**self.tables, package: table}, left_out=self.left_out)


_SAME_IN_EVERY_BUILD = ("requires_python", "pythons", "free_threaded", "triton", "triton_requires", "triton_min_major")


def read(folder: Path) -> Factbook:
    """The facts of a folder; a file that is missing or damaged is left out, with the reason."""
    tables, left_out = {}, []
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_bytes())
            if "releases" in document:
                tables[str(document["package"])] = document["releases"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            left_out.append(f"facts/{path.name} is left out: {error}")
    return Factbook(tables=tables, left_out=tuple(left_out))


def _split(text: str) -> tuple[str, str]:
    match = _REQUIREMENT.match(text)
    return (match[1].lower().replace("_", "-"), match[3]) if match else (text, "")


def _bare(specifier: str) -> str:
    return specifier.partition("]")[2] if specifier.startswith("[") else specifier
