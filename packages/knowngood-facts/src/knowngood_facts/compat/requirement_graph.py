"""What releases require, as clashes for `knowngood_facts.compat.requirement_solver`, and a list resolved. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from knowngood.core.errors import UsageError
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_facts.compat.dependency_markers import (
    Dependency,
    ResolutionTarget,
    is_of_extra,
    parse_dependency,
    tag_fits,
)
from knowngood_facts.compat.metadata_store import BUILD_PACKAGES, MetadataStore, ReleaseDeclaration, specifier_mask
from knowngood_facts.compat.requirement_solver import Clash, RequirementSearch, SearchFailure, SearchLimitError, Wish
from knowngood_facts.compat.value_domain import ValueDomain, version_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from knowngood_facts.compat.query import PackageSpec

DECLARED = "[declared]"
"""A variable: whether only releases count whose requirements are stated by an artefact that is built."""


@dataclass(frozen=True, kw_only=True)
class Requires:
    """The cause of a clash: releases of a package require something of another one."""

    package: str
    dependency: Dependency
    extra: str = ""
    """The extra of the package with which they do."""


@dataclass(frozen=True, kw_only=True)
class Excludes:
    """The cause of a clash: releases of a package are not for this target, or installers do not take them."""

    package: str
    kind: str
    """`python`, `wheel`, `withdrawn` or `undeclared`."""
    text: str = ""
    """The Requires-Python, where that excludes them."""


@dataclass(kw_only=True)
class PackageNode:
    """A package whose metadata was read."""

    name: str
    domain: ValueDomain
    releases: Sequence[ReleaseDeclaration]
    """What each value of the domain declares."""
    early: int
    """The pre-releases that are taken only when no other release will do."""
    pinned: int
    """The withdrawn releases that may be taken because the user pins them."""
    fits: dict[int, Excludes | None] = field(default_factory=dict)
    """Place -> why the target cannot install it."""
    expanded: dict[int, None] = field(default_factory=dict)
    """The places whose requirements were added."""
    extras: dict[str, None] = field(default_factory=dict)
    """The extras that something asks for."""

    def is_withdrawn(self, place: int) -> bool:
        """Whether installers do not take a release because the index withdrew it."""
        return not self.pinned >> place & 1 and self.releases[place].yanked


@dataclass(kw_only=True)
class RequirementGraph:
    """The clashes that the metadata of packages means on one target."""

    target: ResolutionTarget
    store: MetadataStore
    prereleases: frozenset[str] = frozenset()
    """The packages of which the user's own requirements name a pre-release."""
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """The withdrawn releases that the user pins, and that may be taken therefore: package -> release."""
    unlisted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Package -> beginnings of the names of packages that its requirements are not about: those of another build."""
    waived: Mapping[tuple[str, str, str], frozenset[str]] = field(default_factory=dict)
    """Package, its release and what it requires -> releases of the latter that are accepted against the requirement."""
    nodes: dict[str, PackageNode | None] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    """Package that is required by an address -> the package that does so."""

    def node(self, name: str) -> PackageNode | None:
        """Return a package; `None` when there is no metadata of it."""
        if name not in self.nodes:
            self.nodes[name] = self._read_node(name)
        return self.nodes[name]

    def _read_node(self, name: str) -> PackageNode | None:
        package = self.store.find_package(name)
        if package is None:
            return None
        domain, releases = package.domain, package.releases
        early = 0 if name in self.prereleases else domain.some & ~domain.final
        pinned = domain.mask(f"=={self.withdrawn[name]}") if name in self.withdrawn else 0
        return PackageNode(name=name, domain=domain, releases=releases, early=early, pinned=pinned)

    def everything(self, variable: str) -> int:
        """Return all values of a variable: of an extra, that it is asked for (1) and that it is not (2)."""
        if variable.endswith("]"):
            return 3
        node = self.node(variable)
        return node.domain.all if node else 3

    def absence(self, variable: str) -> int:
        """Return the bit of a variable's absence."""
        node = None if variable.endswith("]") else self.node(variable)
        return node.domain.absent if node else 2

    def prefer(self, variable: str, mask: int) -> int:
        """Return the bit of the newest release of a mask that installers take and that the target can install."""
        node = None if variable.endswith("]") else self.node(variable)
        if node is None:
            return mask & -mask
        for wanted in (mask & ~node.early, mask & node.early):
            left = wanted
            while left:
                place = left.bit_length() - 1
                if not node.is_withdrawn(place) and self.exclusion(node, place) is None:
                    return 1 << place
                left ^= 1 << place
        return 1 << (mask.bit_length() - 1)

    def exclusion(self, node: PackageNode, place: int) -> Excludes | None:
        """Return why the target cannot install a release; `None` when it can."""
        if place not in node.fits:
            node.fits[place] = self._exclusion(node, node.releases[place])
        return node.fits[place]

    def _exclusion(self, node: PackageNode, release: ReleaseDeclaration) -> Excludes | None:
        target = self.target
        if release.requires_python and not python_fits(release.requires_python, target):
            return Excludes(package=node.name, kind="python", text=release.requires_python)
        if any(tag_fits(tag, target) for tag in release.wheels):
            return None
        needs_wheel = target.wheels_only and node.name not in target.present
        if not needs_wheel and (release.has_sdist or not release.wheels):
            return None
        return Excludes(package=node.name, kind="wheel")

    def expand(self, variable: str, value: int) -> list[Clash]:
        """Return the clashes of one release, or of an extra that is asked for; none when they were returned before."""
        if variable.endswith("]"):
            name, _, extra = variable[:-1].partition("[")
            node = self.node(name)
            if node is None or extra in node.extras:
                return []
            node.extras[extra] = None
            return [clash for place in node.expanded for clash in self._requirements(node, place, extra)]
        node = self.node(variable)
        place = value.bit_length() - 1
        if node is None or place in node.expanded:
            return []
        clashes = list(self._exclusions(node, place))
        if clashes:
            return clashes
        node.expanded[place] = None
        if node.releases[place].source == "none":
            undeclared = sum(1 << other for other, release in enumerate(node.releases) if release.source == "none")
            clashes.append(Clash({node.name: undeclared, DECLARED: 1}, Excludes(package=node.name, kind="undeclared")))
        clashes += self._requirements(node, place, "")
        for extra in node.extras:
            clashes += self._requirements(node, place, extra)
        return clashes

    def _exclusions(self, node: PackageNode, place: int) -> Iterator[Clash]:
        if node.is_withdrawn(place):
            alike = sum(1 << other for other in range(len(node.releases)) if node.is_withdrawn(other))
            yield Clash({node.name: alike}, Excludes(package=node.name, kind="withdrawn"))
        reason = self.exclusion(node, place)
        if reason is not None:
            mask = 0
            for other in range(len(node.releases)):
                if self.exclusion(node, other) == reason:
                    mask |= 1 << other
            yield Clash({node.name: mask}, reason)

    def _requirements(self, node: PackageNode, place: int, extra: str) -> Iterator[Clash]:
        for line in node.releases[place].requirements:
            if not extra and is_of_extra(line):
                continue
            dependency = parse_dependency(line)
            if dependency is None or bool(extra) is not bool(dependency.marked_extras):
                continue
            if extra and extra not in dependency.marked_extras:
                continue
            if dependency.marker and not self.target.fulfils(dependency.marker, extra):
                continue
            if dependency.name.startswith(self.unlisted.get(node.name, ("-",))):
                continue
            yield from self._requirement(node, place, extra, line, dependency)

    def required_of(self, node: PackageNode, place: int, other: str) -> Iterator[tuple[Requires, int]]:
        """Yield what a release requires of another package without extras, and the values that this excludes."""
        for clash in self._requirements(node, place, ""):
            if isinstance(clash.cause, Requires) and clash.cause.dependency.name == other and other in clash.sets:
                yield clash.cause, clash.sets[other]

    def _requirement(
        self, node: PackageNode, place: int, extra: str, line: str, dependency: Dependency
    ) -> Iterator[Clash]:
        condition = {node.name: 1 << place} | ({f"{node.name}[{extra}]": 1} if extra else {})
        cause = Requires(package=node.name, dependency=dependency, extra=extra)

        def widen(clash: Clash) -> None:
            same = (other for other, release in enumerate(node.releases) if line in release.requirements)
            clash.sets[node.name] = sum(1 << other for other in same)

        other = self.node(dependency.name)
        if dependency.is_url:
            self.addresses.setdefault(dependency.name, node.name)
            return
        if other is None:
            yield Clash({**condition, dependency.name: 2}, cause, (), widen)
            return
        refused = self._refused_releases(node, place, other, dependency)
        if other is node or refused == other.domain.all:
            if refused >> place & 1 or other is not node:
                yield Clash(condition, cause, (), widen if other is not node else None)
        else:
            yield Clash({**condition, other.name: refused}, cause, (), widen)
        for wanted in dependency.extras:
            if f"{other.name}[{wanted}]" not in condition:
                yield Clash({**condition, f"{other.name}[{wanted}]": 2}, cause, (), widen)

    def _refused_releases(self, node: PackageNode, place: int, other: PackageNode, dependency: Dependency) -> int:
        """The values of another package that a requirement excludes; its absence is always one of them."""
        domain = other.domain
        refused = domain.all & ~specifier_mask(domain, dependency.specifier)
        waived = self.waived.get((node.name, node.domain.values[place], other.name), ())
        return refused & ~sum(1 << domain.index[version] for version in waived if version in domain.index)


def python_fits(requires_python: str, target: ResolutionTarget) -> bool:
    """Whether the target's Python is not older than a Requires-Python; as in uv, upper bounds exclude nothing.

    A Python without a third number counts as its last release.
    """
    lower = [
        f"{'>' if match[1] == '>' else '>='}{match[2]}"
        for clause in requires_python.split(",")
        if (match := _LOWER_BOUND.fullmatch(clause.strip()))
    ]
    return not lower or _python_matches(",".join(lower), target)


def python_is_declared(requires_python: str, target: ResolutionTarget) -> bool:
    """Whether the target's Python fulfils the whole of a Requires-Python, as pip demands."""
    return not requires_python or _python_matches(requires_python, target)


_LOWER_BOUND = lazy_pattern(r"(>=|>|~=|===?)\s*([^*\s]+?)(?:\.\*)?")


def _python_matches(specifier: str, target: ResolutionTarget) -> bool:
    releases = (target.full,) if target.python.count(".") > 1 else (target.full, f"{target.python}.99")
    try:
        return any(version_matches(specifier, release) for release in releases)
    except (UsageError, ValueError):
        return True


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Requirements of a list that cannot be fulfilled together, none of which can be left out."""

    packages: tuple[PackageSpec, ...]
    failure: SearchFailure


@dataclass(kw_only=True)
class RequirementResolution:
    """What resolving a list of packages gave on one target."""

    graph: RequirementGraph
    search: RequirementSearch
    wishes: dict[Wish, PackageSpec]
    """What the list asks for -> the package of the list that does."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package -> release, for the list and all that it requires; empty when there is no solution."""
    settled: Mapping[str, str] = field(default_factory=dict)
    """Those of them that are the only ones which the list allows."""
    conflict: Conflict | None = None
    without_metadata: tuple[str, ...] = ()
    """The packages of the list of which there is no metadata."""
    without_release: tuple[PackageSpec, ...] = ()
    """The packages of the list of which no release is as the list says."""
    unread: tuple[str, ...] = ()
    """The packages that others require and of which there is no metadata, or no known release."""
    undeclared: Mapping[str, str] = field(default_factory=dict)
    """The chosen releases whose requirements no artefact states before it is built: package -> release."""
    given_up: bool = False
    """The search took too many steps, so that nothing is known."""

    @property
    def target(self) -> ResolutionTarget:
        """The machine and Python for which it was resolved."""
        return self.graph.target

    @cached_property
    def covered(self) -> dict[str, PackageNode]:
        """The packages of the list that have metadata of the releases that the list means."""
        names = (package.name for package in self.wishes.values())
        return {name: node for name in names if (node := self.graph.node(name)) is not None}


@dataclass(kw_only=True)
class RequirementSearches:
    """The searches that were begun: lists that differ only in what they ask for share what was read and learned."""

    store: MetadataStore
    waived: Mapping[tuple[str, str, str], frozenset[str]] = field(default_factory=dict)
    """As in `RequirementGraph`."""
    _searches: dict[object, tuple[RequirementGraph, RequirementSearch]] = field(default_factory=dict)

    def find_search(
        self, packages: Sequence[PackageSpec], target: ResolutionTarget
    ) -> tuple[RequirementGraph, RequirementSearch]:
        """Return the search for lists like this one."""
        prereleases = frozenset(package.name for package in packages if _names_prerelease(package.specifier))
        withdrawn = frozenset(
            (package.name, package.version) for package in packages if package.version and self._is_withdrawn(package)
        )
        builds = frozenset(package.name for package in packages if package.local and package.name in BUILD_PACKAGES)
        key = (target, prereleases, withdrawn, builds)
        if key not in self._searches:
            graph = RequirementGraph(
                target=target,
                store=self.store,
                waived=self.waived,
                prereleases=prereleases,
                withdrawn=dict(withdrawn),
                unlisted={name: BUILD_PACKAGES[name] for name in builds},
            )
            self._searches[key] = graph, RequirementSearch(source=graph)
        return self._searches[key]

    def _is_withdrawn(self, package: PackageSpec) -> bool:
        releases = self.store.find_package(package.name)
        place = releases.domain.index.get(str(package.version)) if releases else None
        return releases is not None and place is not None and releases.releases[place].yanked


def resolve_packages(
    packages: Sequence[PackageSpec], target: ResolutionTarget, searches: RequirementSearches
) -> RequirementResolution:
    """Resolve a list in which each package stands once.

    Args:
        packages: the list; a package with the specifier `none` has to be absent.
        target: the machine and the Python.
        searches: it has the metadata, and what was learned from it.
    """
    graph, search = searches.find_search(packages, target)
    resolution = RequirementResolution(graph=graph, search=search, wishes={})
    without_metadata, without_release = [], []
    for package in packages:
        releases = searches.store.find_package(package.name)
        if releases is None:
            without_metadata.append(package.name)
            continue
        mask = releases.wanted(package)
        if not mask:
            without_release.append(package)
            continue
        resolution.wishes[Wish(package.name, mask)] = package
        for extra in package.extras:
            resolution.wishes[Wish(f"{package.name}[{extra}]", 1)] = package
    resolution.without_metadata = tuple(without_metadata)
    resolution.without_release = tuple(without_release)
    _solve(resolution)
    return resolution


def _names_prerelease(specifier: str) -> bool:
    return bool(re.search(r"\d\.?(?:a|b|c|rc|dev)\.?\d", specifier))


def _solve(resolution: RequirementResolution) -> None:
    wishes = list(resolution.wishes)
    try:
        result = resolution.search.solve(wishes)
        if isinstance(result, SearchFailure):
            resolution.conflict = _minimal_conflict(resolution, result)
            return
        settled = dict(resolution.search.settled)
        _note_solution(resolution, result)
        resolution.settled = {name: text for name, text in resolution.versions.items() if name in settled}
        if resolution.undeclared:
            # Older releases may do, whose requirements are known: then it is known that the list resolves.
            result = resolution.search.solve([Wish(DECLARED, 1), *wishes])
            if not isinstance(result, SearchFailure):
                _note_solution(resolution, result)
    except SearchLimitError:
        resolution.given_up = not resolution.versions


def _note_solution(resolution: RequirementResolution, result: Mapping[str, int]) -> None:
    graph = resolution.graph
    versions, unread, undeclared = {}, [], {}
    for name, bit in result.items():
        if name.endswith("]"):
            continue
        node = graph.node(name)
        if node is None:
            unread.append(name)
            continue
        place = bit.bit_length() - 1
        versions[name] = node.domain.values[place]
        if node.releases[place].source == "none":
            undeclared[name] = versions[name]
    resolution.versions, resolution.undeclared = versions, undeclared
    resolution.unread = tuple(dict.fromkeys([*unread, *graph.addresses]))


def _minimal_conflict(resolution: RequirementResolution, failure: SearchFailure) -> Conflict:
    """Leave out what a failure does not need."""
    for wish in failure.wishes:
        if wish not in failure.wishes:
            continue
        fewer = resolution.search.solve([item for item in failure.wishes if item != wish])
        if isinstance(fewer, SearchFailure):
            failure = fewer
    packages = dict.fromkeys(resolution.wishes[wish].name for wish in failure.wishes)
    by_name = {package.name: package for package in resolution.wishes.values()}
    return Conflict(packages=tuple(by_name[name] for name in packages), failure=failure)
