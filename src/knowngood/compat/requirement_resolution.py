"""A list of packages resolved with everything that it requires, or the part of it that cannot go together. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from knowngood.compat.dependency_markers import ResolutionTarget
from knowngood.compat.metadata_store import BUILD_PACKAGES, MetadataStore
from knowngood.compat.query import PackageSpec
from knowngood.compat.requirement_graph import DECLARED, PackageNode, RequirementGraph
from knowngood.compat.requirement_solver import RequirementSearch, SearchFailure, SearchLimitError, Wish


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
