"""All harvested facts as plain tables, in the way in which rules name them: package, version, fact.

`facts.fact_store` gives one package in typed form; rules name facts by text and need all packages in a few
milliseconds. A fact that is missing is unknown, never an error. Only `FactFolder` reads files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from knowngood_facts.compat.dependency_markers import Dependency, ResolutionTarget, is_of_extra, parse_dependency
from knowngood_facts.compat.metadata_store import BUILD_PACKAGES, NO_METADATA, MetadataStore
from knowngood_facts.facts.fact_store import load_fact_document

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

DRIVERS = "drivers"
"""The one table whose "releases" are those of CUDA and not of a distribution."""

_FACTS_OF_EXTRAS = {("transformers", "torch"): ("torch", "accelerate")}
"""A package and its extra -> the facts that are what the extra requires of the distributions of the same names."""

_USUAL_TARGET = ResolutionTarget(python="3.11")


@dataclass(frozen=True, kw_only=True)
class DeclaredRequirement:
    """A requirement of a package on another one, with or without a marker, that no extra brings."""

    dependency: Dependency
    versions: tuple[str, ...]
    """The releases with facts that state it."""


@dataclass(frozen=True, kw_only=True)
class Factbook:
    """Package -> version -> the harvested entry, as in the files of `facts/`."""

    tables: Mapping[str, Mapping[str, Mapping[str, Any]]]
    metadata: MetadataStore = NO_METADATA
    """What releases of all packages of the field declare."""
    _requirements: dict[str, tuple[DeclaredRequirement, ...]] = field(default_factory=dict, repr=False)
    _requires: dict[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict, repr=False)

    @property
    def packages(self) -> list[str]:
        """The distributions that have facts."""
        return [name for name in self.tables if name != DRIVERS]

    def versions(self, package: str) -> list[str]:
        """Return the releases of a package, in the order of its file."""
        return list(self.tables.get(package, ()))

    def fact(self, package: str, version: str, name: str) -> Any:
        """Return a fact; `None` when it is not known (`reason` says why) or the release has no such fact."""
        entry = self.tables.get(package, {}).get(version)
        if entry is None:
            return None
        if (package, name) == ("torch", "driver_minimum"):
            return self.fact(DRIVERS, str(entry["facts"].get("cuda")), "minimum")
        if (package, name) == ("triton", "ptxas_on_blackwell"):
            # triton 3.4 and 3.5 have one assembler for all; the others a second one for Blackwell.
            return entry["facts"].get("ptxas_blackwell") or entry["facts"].get("ptxas")
        if name == "pythons" and "-abi3-" in str(entry.get("artefact")):
            return self._pythons_from(entry["facts"].get(name))
        name, colon, key = name.partition(":")
        return self._entry_of_table(package, version, name, key) if colon else entry["facts"].get(name)

    def _pythons_from(self, pythons: Sequence[str] | None) -> list[str] | None:
        """The Pythons of a wheel of the stable ABI: the one that it names and all newer ones that facts name."""
        if not pythons:
            return None
        known = {
            text
            for table in self.tables.values()
            for entry in table.values()
            for text in entry.get("facts", {}).get("pythons") or ()
        }
        first = min(map(Version, pythons))
        return [text for text in sorted(known | set(pythons), key=Version) if Version(text) >= first]

    def _entry_of_table(self, package: str, version: str, name: str, key: str) -> Any:
        """What the fact `name` says of `key`; `extra` looks in all extras."""
        facts = self.tables[package][version]["facts"]
        if name == "extra":
            return next((extra[key] for extra in (facts.get("extras") or {}).values() if key in extra), None)
        return (facts.get(name) or {}).get(key)

    def reason(self, package: str, version: str, name: str) -> str | None:
        """Return why a fact is not known; `None` when it is known, or the release has no such fact."""
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
        reason = unknown.get(name) or unknown.get("artefact")
        return str(reason) if reason else None

    def requirements(self, package: str) -> tuple[DeclaredRequirement, ...]:
        """Return what releases of a package require, each requirement with the releases that state it.

        It is read from the metadata; for releases whose requirements no metadata states, from the fact `requires`.
        """
        if package not in self._requirements:
            stated = list(self._requirements_in_metadata(package))
            covered = {version for item in stated for version in item.versions} | self._releases_with_metadata(package)
            for version in self.tables.get(package, {}):
                raw = self.fact(package, version, "requires") if version not in covered else None
                lines = raw if isinstance(raw, list) else [f"{name}{text}" for name, text in (raw or {}).items()]
                parsed = filter(None, map(parse_dependency, lines))
                stated += (DeclaredRequirement(dependency=item, versions=(version,)) for item in parsed)
            self._requirements[package] = tuple(stated)
        return self._requirements[package]

    def _requirements_in_metadata(self, package: str) -> Iterator[DeclaredRequirement]:
        releases = self.metadata.find_package(package)
        if releases is None:
            return
        places = {version: releases.domain.index.get(version.partition("+")[0]) for version in self.tables[package]}
        for line, mask in releases.requirements.items():
            dependency = None if is_of_extra(line) else parse_dependency(line)
            if dependency is None or dependency.marked_extras or dependency.is_url:
                continue
            of_build = dependency.name.startswith(BUILD_PACKAGES.get(package, ("-",)))
            versions = tuple(
                version
                for version, place in places.items()
                if place is not None and mask >> place & 1 and not (of_build and "+" in version)
            )
            if versions:
                yield DeclaredRequirement(dependency=dependency, versions=versions)

    def _releases_with_metadata(self, package: str) -> set[str]:
        """Return the releases whose requirements the metadata states."""
        releases = self.metadata.find_package(package)
        if releases is None:
            return set()
        places = {version: releases.domain.index.get(version.partition("+")[0]) for version in self.tables[package]}
        return {
            version
            for version, place in places.items()
            if place is not None and releases.releases[place].source != "none"
        }

    def requires(self, package: str, version: str) -> Mapping[str, str]:
        """Return what a release requires with Python 3.11: normalized name -> specifier, without extras."""
        if package not in self._requires:
            table: dict[str, dict[str, str]] = {}
            for item in self.requirements(package):
                if _USUAL_TARGET.fulfils(item.dependency.marker):
                    for release in item.versions:
                        table.setdefault(release, {})[item.dependency.name] = item.dependency.specifier
            self._requires[package] = table
        return self._requires[package].get(version, {})

    def extra_requires(self, package: str, version: str, extra: str) -> Mapping[str, str] | None:
        """Return what an extra of a release adds to its requirements; `None` when the facts do not say."""
        requires = (self.fact(package, version, "extras") or {}).get(extra)
        if requires is None:
            requires = self.fact(package, version, f"requires_{extra}")
        if requires is None and (package, extra) in _FACTS_OF_EXTRAS:
            facts = {name: self.fact(package, version, name) for name in _FACTS_OF_EXTRAS[package, extra]}
            requires = None if None in facts.values() else facts
        return None if requires is None else {name: _without_extras(text) for name, text in requires.items()}

    def source(self, package: str, version: str) -> str:
        """Return what the facts of a release were read from, as text for people."""
        entry = self.tables.get(package, {}).get(version, {})
        artefact = entry.get("artefact") or f"{package} {version}"
        return f"{artefact}, read {entry['read']}" if "read" in entry else str(artefact)

    def yanked(self, package: str, version: str) -> bool:
        """Whether the registry withdrew a release."""
        return bool(self.tables.get(package, {}).get(version, {}).get("yanked"))

    def every(self, package: str, name: str) -> Iterator[Any]:
        """Yield a fact of all releases of a package that have it."""
        for version in self.versions(package):
            value = self.fact(package, version, name)
            if value is not None:
                yield value

    def latest(self, package: str) -> str | None:
        """Return the newest release; a pre-release only when there is nothing else."""
        known = sorted(map(Version, self.versions(package)))
        final = [version for version in known if not version.is_prerelease]
        return str((final or known)[-1]) if known else None

    def with_variant(self, package: str, version: str, local: str, facts: Mapping[str, Any], why: str) -> Factbook:
        """Return the facts with one more build of a release; of it only `facts` and what all builds share are known."""
        table = dict(self.tables[package])
        original = table[version]
        kept = {name: original["facts"][name] for name in _SAME_IN_EVERY_BUILD if name in original["facts"]}
        lost = dict.fromkeys((name for name in original["facts"] if name not in kept and name not in facts), why)
        table[f"{version}+{local}"] = {**original, "facts": {**kept, **facts}, "unknown": lost}
        return Factbook(tables={**self.tables, package: table}, metadata=self.metadata)


_SAME_IN_EVERY_BUILD = (
    "requires_python",
    "pythons",
    "free_threaded",
    "triton",
    "triton_requires",
    "triton_min_major",
    "numpy_1_only",
    "cxx_minimum",
    "cuda_check",
)


@dataclass(frozen=True, kw_only=True)
class FactFolder:
    """The folder of harvested facts, of which a package's file is read when its facts are first needed."""

    path: Path
    metadata: MetadataStore = NO_METADATA
    """What the books that are read say about requirements."""
    _tables: dict[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict, repr=False)

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """The distributions that have facts, by name."""
        return tuple(name for name in sorted(path.stem for path in self.path.glob("*.json")) if name != DRIVERS)

    def read_book(self, packages: Collection[str] | None = None, without: Collection[str] = ()) -> Factbook:
        """Return all facts, or those of some packages and of what these require, directly or not.

        What is only required is left out where `without` names it.

        Raises:
            InputError: a file is damaged. Without its facts, rules would silently not apply.
        """
        unread = set(self.packages if packages is None else packages) & set(self.packages)
        read: set[str] = set()
        book = Factbook(tables=self._tables, metadata=self.metadata)
        while unread:
            name = unread.pop()
            read.add(name)
            self._read(name)
            if packages is not None:
                required = {item.dependency.name for item in book.requirements(name)}
                unread |= (required & set(self.packages)) - read - set(without)
        if (self.path / f"{DRIVERS}.json").exists():
            read.add(DRIVERS)
            self._read(DRIVERS)
        return Factbook(tables={name: self._tables[name] for name in sorted(read)}, metadata=self.metadata)

    def _read(self, name: str) -> None:
        if name not in self._tables:
            self._tables[name] = load_fact_document(self.path / f"{name}.json")["releases"]


def _without_extras(specifier: str) -> str:
    return specifier.partition("]")[2] if specifier.startswith("[") else specifier


def factbook_with_torch_build(book: Factbook, version: str, local: str) -> Factbook | None:
    """Return the facts with a build of torch that is not the default index's (`2.11.0+cu126`).

    What the build does not change still holds, and its CUDA follows from its name. `None` when it is the default build,
    or when that version has no facts.
    """
    known = next((name for name in book.versions("torch") if Version(name) == Version(version)), None)
    if known is None:
        return None
    cuda = re.fullmatch(r"cu(\d{2,3})", local)
    built = f"{cuda[1][:-1]}.{cuda[1][-1]}" if cuda else None
    if built == book.fact("torch", known, "cuda"):
        return None
    facts: dict[str, Any] = {}
    if built:
        facts["cuda"] = built
    why = f"the facts are of the default index's build (CUDA {book.fact('torch', known, 'cuda')}), not of +{local}"
    return book.with_variant("torch", known, local, facts, why)
