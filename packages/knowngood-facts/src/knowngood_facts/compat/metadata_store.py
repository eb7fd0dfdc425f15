"""What releases declare, as a resolution reads it: a package at a time, each once. Pure.

`knowngood_facts.facts.package_metadata` reads the files.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from packaging.version import InvalidVersion, Version

from knowngood.core.errors import UsageError
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_facts.compat.value_domain import NONE, ReleaseDomain, ValueDomain, version_matches

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
        """What its requirements were read from: `wheel`, `sdist`, `dynamic` (an sdist that may differ) or `none`."""

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
    day: str = ""
    """The day up to which the index was read, `2026-11-19`; empty where it is not known."""
    _packages: dict[str, PackageReleases | None] = field(default_factory=dict, repr=False)

    def with_supposed(self, releases: Mapping[str, Collection[str]]) -> MetadataStore:
        """Return a store in which packages have these releases too, newer than all that were read of them.

        Nothing is known of such a release but that something asks for it: it requires nothing, and fits every machine.
        """

        def read(name: str) -> PackageDeclarations | None:
            known = self.read(name)
            return SupposedReleases(known, releases[name]) if name in releases else known

        return MetadataStore(read=read, names=self.names, day=self.day)

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


@dataclass(frozen=True, kw_only=True)
class SupposedRelease:
    """A release that something asks for and nobody read."""

    requires_python: str | None = None
    requirements: tuple[str, ...] = ()
    extras: Collection[str] = ()
    wheels: tuple[str, ...] = ("py3-none-any",)
    has_sdist: bool = True
    yanked: bool = False
    source: str = "wheel"
    uploaded: str = ""


class SupposedReleases:
    """What is known of a package, if anything, and after it releases that nobody read."""

    def __init__(self, known: PackageDeclarations | None, supposed: Collection[str]) -> None:
        self._known = known
        newer: dict[str, ReleaseDeclaration] = dict.fromkeys(sorted(supposed, key=Version), SupposedRelease())
        older = known.releases if known is not None else {}
        self.releases: Mapping[str, ReleaseDeclaration] = ChainMap(newer, older)  # type: ignore[arg-type]  # it is read

    @property
    def requirements(self) -> Mapping[str, int]:
        """Requirement, as it is written -> the releases that state it; the supposed ones state none."""
        return self._known.requirements if self._known is not None else {}


def find_supposed_release(domain: ValueDomain, specifier: str) -> str | None:
    """Return the least release by which a specifier would be met that is newer than all of a domain.

    `None` where a known release meets the specifier, or only an older one could.
    """
    if not domain.values or specifier_mask(domain, specifier) & domain.some:
        return None
    bounds = [_release_at(match[1], match[2]) for match in _LOWER_BOUND.finditer(specifier)]
    least = max(filter(None, bounds), default=None)
    if least is None or least <= domain.keys[-1]:
        return None
    return str(least) if version_matches(specifier, str(least)) else None


_LOWER_BOUND = lazy_pattern(r"(?:^|,)\s*(>=|>|~=|===?)\s*([^,*\s]+?)(?:\.\*)?\s*(?=,|$)")


def _release_at(operator: str, text: str) -> Version | None:
    try:
        bound = Version(text)
    except InvalidVersion:
        return None
    *numbers, last = bound.release
    return bound if operator != ">" else Version(".".join(map(str, [*numbers, last + 1])))


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


def has_metadata(store: MetadataStore, package: PackageSpec) -> bool:
    """Return whether it is known what some release that an entry of a list means requires."""
    releases = store.find_package(package.name)
    return releases is not None and bool(releases.wanted(package))
