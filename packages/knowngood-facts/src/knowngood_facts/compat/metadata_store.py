"""What releases declare, as a resolution reads it: a package at a time, each once. Pure.

`knowngood_facts.facts.package_metadata` reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from knowngood.core.errors import UsageError
from knowngood_facts.compat.value_domain import NONE, ReleaseDomain, ValueDomain

if TYPE_CHECKING:
    from knowngood_facts.compat.query import PackageSpec


class ReleaseDeclaration(Protocol):
    """What a release declares; `knowngood_facts.facts.package_metadata.ReleaseMetadata` is one."""

    @property
    def requires_python(self) -> str | None:
        """The specifier of the Pythons that it runs with."""

    @property
    def requirements(self) -> tuple[str, ...]:
        """Its requirements as they are written, with markers."""

    @property
    def extras(self) -> Collection[str]:
        """The names of its extras."""

    @property
    def wheels(self) -> tuple[str, ...]:
        """The tags of its wheels."""

    @property
    def has_sdist(self) -> bool:
        """Whether it has an sdist."""

    @property
    def yanked(self) -> bool:
        """Whether the index withdrew it."""

    @property
    def source(self) -> str:
        """What its requirements were read from: `wheel`, `sdist` or `none`."""

    @property
    def uploaded(self) -> str:
        """The day of its first file, `2024-07-08`; empty when it is not known."""


class PackageDeclarations(Protocol):
    """What all releases of a package declare."""

    @property
    def releases(self) -> Mapping[str, ReleaseDeclaration]:
        """Version -> what it declares, oldest first."""

    @property
    def requirements(self) -> Mapping[str, int]:
        """Requirement, as it is written -> the releases that state it, as bits in the order of `releases`."""


class MetadataSource(Protocol):
    """Where metadata is read from, a package at a time."""

    def __call__(self, name: str) -> PackageDeclarations | None:
        """Return the metadata of a package; `None` when there is none."""


class _ReleasesInOrder(Sequence[ReleaseDeclaration]):
    """The releases of a package by their place; each is read when it is first asked for."""

    def __init__(self, releases: Mapping[str, ReleaseDeclaration], versions: Sequence[str]) -> None:
        self._releases = releases
        self._versions = versions

    def __len__(self) -> int:
        return len(self._versions)

    def __getitem__(self, place: Any) -> Any:
        return self._releases[self._versions[place]]


@dataclass(frozen=True, kw_only=True)
class PackageReleases:
    """The releases of a package in ascending order."""

    domain: ValueDomain
    releases: Sequence[ReleaseDeclaration]
    """What each value of the domain declares."""
    declarations: PackageDeclarations

    @property
    def requirements(self) -> Mapping[str, int]:
        """Requirement, as it is written -> the mask of the releases that state it."""
        return self.declarations.requirements

    def wanted(self, package: PackageSpec) -> int:
        """Return the values that an entry of a list means."""
        domain = self.domain
        if package.specifier == NONE:
            return domain.absent
        if package.is_constraint:
            return specifier_mask(domain, package.specifier) | domain.absent
        build = f"{package.version}+{package.local}"
        if package.local and build in domain.index:
            return 1 << domain.index[build]
        return specifier_mask(domain, package.specifier) & domain.some


@dataclass(frozen=True, kw_only=True)
class MetadataStore:
    """The metadata of the packages of the field; each package is read once."""

    read: MetadataSource
    names: Callable[[], Iterable[str]]
    """Returns the names of all packages that have metadata."""
    _packages: dict[str, PackageReleases | None] = field(default_factory=dict, repr=False)

    def find_package(self, name: str) -> PackageReleases | None:
        """Return the releases of a package; `None` when there is no metadata of it."""
        if name not in self._packages:
            facts = self.read(name)
            if facts is None:
                self._packages[name] = None
            else:
                domain = ReleaseDomain(name, facts.releases)
                releases = _ReleasesInOrder(facts.releases, domain.values)
                self._packages[name] = PackageReleases(domain=domain, releases=releases, declarations=facts)
        return self._packages[name]


BUILD_PACKAGES: Mapping[str, tuple[str, ...]] = {"torch": ("nvidia-", "cuda-")}
"""Package -> beginnings of the names of what it requires that depends on its build (`2.11.0+cu126`)."""

NO_METADATA = MetadataStore(read=lambda _: None, names=tuple)
"""The store that has no package."""


def specifier_mask(domain: ValueDomain, specifier: str) -> int:
    """Return the values that fulfil a specifier; all of them when it is not one."""
    try:
        return domain.mask(specifier)
    except UsageError:
        return domain.some
