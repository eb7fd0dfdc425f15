"""The harvested facts, typed and frozen; a package's file is loaded, checked, and written in stable bytes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from packaging.version import Version

from knowngood.core import data_files, json_document, local_files
from knowngood.core.errors import UnknownError
from knowngood.core.local_files import FACTS_FOLDER, write_atomically

FACTS_SCHEMA = "knowngood/facts/1"
BUILDS_FOLDER = "builds"
"""The folder in `facts/` of the packages of which only their builds are known."""
LINES_FOLDER = "lines"
"""The folder in `facts/` of the lines of functions."""

_SCHEMA_MODULE = Path(__file__).with_name("fact_schema.py")


def load_fact_document(path: Path) -> dict[str, Any]:
    """Return the content of a package's file in `facts/` or `facts/lines/` as plain data.

    Raises `FileNotFoundError` when there is none, and `InputError` with every defect when it is damaged.
    """

    def parse(data: bytes) -> dict[str, Any]:
        from knowngood_facts.facts.fact_schema import (
            parse_fact_document,  # the schema takes as long to import as the facts
        )

        return parse_fact_document(data, path)

    modules = (_SCHEMA_MODULE, Path(json_document.__file__))
    document: dict[str, Any] = data_files.load_json_checked_once(path, parse, modules)
    return document


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseFacts(Generic[T_co]):
    """What is known about one published release."""

    version: str
    read: str
    """The date it was read, `2026-11-21`."""
    yanked: bool
    artefact: str | None
    """The file it was read from; `None` when the release has none that could serve."""
    facts: T_co
    unknown: Mapping[str, str]
    """Fact -> why it is not known."""


PackageFacts = Mapping[str, ReleaseFacts[T]]
"""The known releases of a package by version (normalized, as in the index), oldest first."""


def facts_folder() -> Path:
    """Return the folder of the facts that this installation uses."""
    return local_files.data_folder() / FACTS_FOLDER


def list_packages(folder: Path | None = None) -> list[str]:
    """Return the packages that there are facts about, sorted."""
    return sorted(path.stem for path in (folder or facts_folder()).glob("*.json"))


def list_versions(package: str) -> list[str]:
    """Return the known releases of a package, oldest first; `UnknownError` when there are no facts about it."""
    return list(read_releases(package))


def read_releases(package: str, folder: Path | None = None) -> Mapping[str, Any]:
    """Return version -> entry as in the package's file: plain JSON, for commands that must start fast.

    `UnknownError` when there are no facts about the package. The file is read once in a process; do not change it.
    """
    return _read_releases(package, folder or facts_folder())


def load_facts(package: str, model: type[T], folder: Path | None = None) -> PackageFacts[T]:
    """Load the facts of a package, once in a process; `UnknownError` when there are none.

    `model` is the dataclass in the module of the package's reader.
    """
    return _load(package, model, folder or facts_folder())  # type: ignore[arg-type] # mypy: a class is hashable


@cache
def _load(package: str, model: type[Any], folder: Path) -> PackageFacts[Any]:
    names = tuple(field.name for field in dataclasses.fields(model))
    releases = {
        version: ReleaseFacts(
            version=version,
            read=entry["read"],
            yanked=entry["yanked"],
            artefact=entry["artefact"],
            facts=model(**{name: _freeze(entry["facts"].get(name)) for name in names}),
            unknown=MappingProxyType(entry["unknown"]),
        )
        for version, entry in _read_releases(package, folder).items()
    }
    return MappingProxyType(releases)


@cache
def _read_releases(package: str, folder: Path) -> Mapping[str, Any]:
    path = folder / f"{package}.json"
    try:
        releases: Mapping[str, Any] = load_fact_document(path)["releases"]
    except FileNotFoundError:
        known = ", ".join(list_packages(folder)) or "nothing"
        raise UnknownError(f"there are no facts about {package} in {folder}; there are about {known}") from None
    return releases


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_freeze, value))
    if isinstance(value, dict):
        return MappingProxyType({key: _freeze(item) for key, item in value.items()})
    return value


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
