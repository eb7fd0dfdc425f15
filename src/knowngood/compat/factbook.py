"""All harvested facts as plain tables, in the way in which rules name them: package, version, fact.

`knowngood.facts.fact_store` gives one package in typed form; rules name facts by text and need all packages in a few
milliseconds. A fact that is missing is unknown, never an error. Only `FactFolder` reads files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.version import Version

from knowngood.core.quick_dataclasses import dataclass
from knowngood.facts.fact_document import load_fact_document

DRIVERS = "drivers"
"""The one table whose "releases" are those of CUDA and not of a distribution."""

_FACTS_OF_EXTRAS = {("transformers", "torch"): ("torch", "accelerate")}
"""A package and its extra -> the facts that are what the extra requires of the distributions of the same names."""

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(\[[^\]]*\])?\s*([^;]*)")


@dataclass(frozen=True, kw_only=True)
class Factbook:
    """Package -> version -> the harvested entry, as in the files of `facts/`."""

    tables: Mapping[str, Mapping[str, Mapping[str, Any]]]
    _requires: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict, repr=False)

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
        """What the fact `name` says of `key`; `requires` is normalized, and `extra` looks in all extras."""
        if name == "requires":
            return self.requires(package, version).get(key)
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

    def requires(self, package: str, version: str) -> Mapping[str, str]:
        """Return what a release requires: normalized name -> specifier, without extras."""
        entry = self.tables.get(package, {}).get(version)
        raw = entry["facts"].get("requires") if entry else None
        if not raw:
            return {}
        key = (package, version)
        requires: Mapping[str, str] | None = self._requires.get(key)
        if requires is None:
            pairs = raw.items() if isinstance(raw, Mapping) else map(_split_requirement, raw)
            requires = self._requires[key] = {name: _without_extras(text) for name, text in pairs}
        return requires

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
        return Factbook(tables={**self.tables, package: table})


_SAME_IN_EVERY_BUILD = (
    "requires_python",
    "pythons",
    "free_threaded",
    "triton",
    "triton_requires",
    "triton_min_major",
    "numpy_1_only",
)


@dataclass(frozen=True, kw_only=True)
class FactFolder:
    """The folder of harvested facts, of which a package's file is read when its facts are first needed."""

    path: Path
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
        book = Factbook(tables=self._tables)
        while unread:
            name = unread.pop()
            read.add(name)
            self._read(name)
            if packages is not None:
                required = {other for version in book.versions(name) for other in book.requires(name, version)}
                unread |= (required & set(self.packages)) - read - set(without)
        if (self.path / f"{DRIVERS}.json").exists():
            read.add(DRIVERS)
            self._read(DRIVERS)
        return Factbook(tables={name: self._tables[name] for name in sorted(read)})

    def _read(self, name: str) -> None:
        if name not in self._tables:
            self._tables[name] = load_fact_document(self.path / f"{name}.json")["releases"]


def _split_requirement(text: str) -> tuple[str, str]:
    match = _REQUIREMENT.match(text)
    return (match[1].lower().replace("_", "-"), match[3]) if match else (text, "")


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
        requires = book.fact("torch", known, "triton_requires")
        if requires:
            facts["requires"] = {"triton": requires}
    why = f"the facts are of the default index's build (CUDA {book.fact('torch', known, 'cuda')}), not of +{local}"
    return book.with_variant("torch", known, local, facts, why)
