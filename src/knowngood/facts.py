"""Facts read from published artefacts: typed, frozen, loaded a package at a time when first asked for.

    from knowngood import facts
    torch = facts.load("torch")["2.11.0"]
    torch.facts.cuda            # "13.0"
    torch.unknown.get("sass")   # the reason, when torch.facts.sass is None

A fact that is `None` is not known, then `Release.unknown` has the reason, or does not exist for this release.
The files are written by `knowngood harvest`; each says so in its key `regenerate`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from knowngood import models, resources
from knowngood.errors import UnknownError

if TYPE_CHECKING:
    from pathlib import Path

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(Generic[T_co]):
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Package(Mapping[str, Release[T_co]]):
    """The known releases of a package by version (normalized, as on the registry), oldest first."""

    name: str
    releases: Mapping[str, Release[T_co]]

    def __getitem__(self, version: str) -> Release[T_co]:
        return self.releases[version]

    def __iter__(self) -> Iterator[str]:
        return iter(self.releases)

    def __len__(self) -> int:
        return len(self.releases)


def default_folder() -> Path:
    """The folder of the facts that this installation uses."""
    return resources.root() / "facts"


def packages() -> tuple[str, ...]:
    """The packages that there are facts about."""
    return tuple(name for name in models.MODELS if (default_folder() / f"{name}.json").exists())


@overload
def load(package: Literal["torch"], folder: Path | None = None) -> Package[models.Torch]: ...
@overload
def load(package: Literal["triton"], folder: Path | None = None) -> Package[models.Triton]: ...
@overload
def load(package: Literal["transformers"], folder: Path | None = None) -> Package[models.Transformers]: ...
@overload
def load(package: Literal["flash-attn"], folder: Path | None = None) -> Package[models.FlashAttn]: ...
@overload
def load(package: Literal["flash-attn-4"], folder: Path | None = None) -> Package[models.FlashAttn4]: ...
@overload
def load(
    package: Literal[
        "transformer-engine", "transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13"
    ],
    folder: Path | None = None,
) -> Package[models.TransformerEngine]: ...
@overload
def load(
    package: Literal["xtuner", "openrlhf", "xformers"], folder: Path | None = None
) -> Package[models.Framework]: ...
@overload
def load(package: Literal["drivers"], folder: Path | None = None) -> Package[models.Driver]: ...
@overload
def load(package: str, folder: Path | None = None) -> Package[Any]: ...
def load(package: str, folder: Path | None = None) -> Package[Any]:
    """The facts of a package, read once a process; `UnknownError` when there are none."""
    return _load(package, folder or default_folder())


@cache
def _load(package: str, folder: Path) -> Package[Any]:
    model = models.MODELS.get(package)
    path = folder / f"{package}.json"
    if model is None or not path.exists():
        raise UnknownError(f"there are no facts about {package}; there are about {', '.join(models.MODELS)}")
    names = tuple(field.name for field in dataclasses.fields(model))
    document = json.loads(path.read_bytes())
    return Package(
        name=package,
        releases=MappingProxyType(
            {version: _release(version, entry, model, names) for version, entry in document["releases"].items()}
        ),
    )


def _release(version: str, entry: Mapping[str, Any], model: type, names: tuple[str, ...]) -> Release[Any]:
    facts = entry["facts"]
    return Release(
        version=version,
        read=entry["read"],
        yanked=entry["yanked"],
        artefact=entry["artefact"],
        facts=model(**{name: _frozen(facts.get(name)) for name in names}),
        unknown=MappingProxyType(entry["unknown"]),
    )


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return value
