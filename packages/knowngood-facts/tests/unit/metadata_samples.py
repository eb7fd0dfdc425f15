"""A store of metadata with invented packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from packaging.version import Version

from knowngood_facts.compat.metadata_store import MetadataStore
from knowngood_facts.compat.universe import Universe


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release as the store of metadata gives it."""

    requirements: tuple[str, ...] = ()
    requires_python: str | None = None
    extras: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ("py3-none-any",)
    has_sdist: bool = False
    yanked: bool = False
    source: str = "wheel"
    uploaded: str = ""


@dataclass(frozen=True)
class Package:
    """A package as the store of metadata gives it."""

    releases: Mapping[str, Release] = field(default_factory=dict)

    @property
    def requirements(self) -> Mapping[str, int]:
        masks: dict[str, int] = {}
        for place, release in enumerate(self.releases.values()):
            for line in release.requirements:
                masks[line] = masks.get(line, 0) | 1 << place
        return masks


Index = Mapping[str, Mapping[str, Release]]


def store_of(index: Index) -> MetadataStore:
    """Return a store of these packages, whose releases it puts into their order."""

    def read(name: str) -> Package | None:
        if name not in index:
            return None
        return Package({version: index[name][version] for version in sorted(index[name], key=Version)})

    return MetadataStore(read=read, names=lambda: index)


def with_metadata(universe: Universe, index: Index) -> Universe:
    """Return a universe that has these packages as all metadata; its boxes stay as they are."""
    space = universe.space
    book = replace(space.book, metadata=store_of(index))
    return replace(universe, index=replace(universe.index, space=replace(space, book=book)))


CHAIN: Index = {
    "trl": {"0.9.6": Release(requirements=("transformers>=4.31",)), "0.20": Release(requirements=("transformers>=5",))},
    "transformers": {
        "4.30": Release(requirements=("tokenizers<0.15",)),
        "4.43": Release(requirements=("tokenizers<0.20,>=0.19",)),
        "5.0": Release(requirements=("tokenizers>=0.22", "torch>=2; extra == 'torch'"), extras=("torch",)),
    },
    "tokenizers": {"0.14": Release(), "0.19": Release(), "0.21": Release(), "0.22": Release(), "0.23rc1": Release()},
    "torch": {"1.9": Release(), "2.0": Release(), "2.1": Release(yanked=True)},
}
