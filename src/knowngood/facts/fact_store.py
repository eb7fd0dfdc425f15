"""The harvested facts, typed and frozen; a package's file is loaded when it is first asked for.

    from knowngood.facts.fact_store import load_facts
    from knowngood.facts.torch_reader import TorchFacts

    torch = load_facts("torch", TorchFacts)["2.11.0"]
    torch.facts.cuda            # "13.0"
    torch.unknown.get("sass")   # the reason, when torch.facts.sass is None

A fact that is `None` is either not known, and then `ReleaseFacts.unknown` has the reason, or the release has no such
thing. `knowngood harvest` writes the files; the key `regenerate` in each gives the command.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from knowngood.core import local_files
from knowngood.core.errors import UnknownError
from knowngood.facts.fact_document import load_fact_document

if TYPE_CHECKING:
    from pathlib import Path

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
    return local_files.data_folder() / "facts"


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
