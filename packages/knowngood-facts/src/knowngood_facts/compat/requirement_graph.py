"""What releases require, as clashes for `knowngood_facts.compat.search`, and a list resolved. Pure."""

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
from knowngood_facts.compat.findings import AXES
from knowngood_facts.compat.metadata_store import BUILD_PACKAGES, MetadataStore, ReleaseDeclaration, specifier_mask
from knowngood_facts.compat.search import Clash, Search, SearchFailure, SearchLimitError, Wish
from knowngood_facts.compat.value_domain import ValueDomain, iterate_bits, version_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from knowngood_facts.compat.box_index import BoxIndex
    from knowngood_facts.compat.query import PackageSpec
    from knowngood_facts.compat.rule_boxes import Box

PYTHON = "python"
"""The variable that is the Python; a package of that name is not looked at."""

USUAL_PYTHONS = ("3.11", "3.12", "3.10", "3.13", "3.9", "3.14", "3.8")
"""The Pythons for which a list is resolved when the query states none, the first first."""

PYTHONS = tuple(f"3.{minor}" for minor in range(6, 16))
"""The Pythons that a search knows, besides a stated one and those of the rules."""

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
    fits: dict[tuple[int, int], Excludes | None] = field(default_factory=dict)
    """Place, and the bit of a Python -> why it cannot be installed there."""
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

    targets: Mapping[int, ResolutionTarget]
    """Bit of a Python -> the machine with it."""
    store: MetadataStore
    rules: BoxIndex | None = None
    """The rules, whose axes are variables too."""
    prereleases: frozenset[str] = frozenset()
    """The packages of which the user's own requirements name a pre-release."""
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """The withdrawn releases that the user pins, and that may be taken therefore: package -> release."""
    unlisted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Package -> beginnings of the names of packages that its requirements are not about: those of another build."""
    waived: Mapping[tuple[str, str, str], frozenset[str]] = field(default_factory=dict)
    """Package, its release and what it requires -> releases of the latter that are accepted against the requirement."""
    nodes: dict[str, PackageNode | None] = field(default_factory=dict)
    addresses: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    """Package and the place of its release -> the packages that it requires by an address."""
    translations: dict[str, list[int]] = field(default_factory=dict)
    """Variable -> for each place of the rules' values, the bit of the search's."""
    pythons: dict[int, None] = field(default_factory=dict)
    """The bits of the Pythons that were chosen; what depends on another one was not looked at."""

    def python_wish(self, python: str) -> Wish:
        """Return the wish for a Python."""
        return Wish(PYTHON, next(bit for bit, target in self.targets.items() if target.python == python))

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

    def rules_wish(self, search: Search, among: int) -> Wish:
        """Give a search the boxes of some rules, in the values of its variables, and return the wish that they hold."""
        name = f"[rules {among:x}]"
        if name not in search.about and self.rules is not None:
            search.about[name] = []
            for bit in iterate_bits(among):
                box = self.rules.boxes[bit]
                if self._is_of_metadata(box):
                    continue
                sets = {variable: self.translate(variable, mask) for variable, mask in box.masks.items()}
                if all(sets.values()):
                    search.add(Clash({name: 1, **sets}, box))
        return Wish(name, 1)

    def _is_of_metadata(self, box: Box) -> bool:
        """Whether a box is a requirement that the metadata, from which it was made, brings into the search itself."""
        kind, *names = box.rule.id.split(":")
        if kind not in ("requires", "bounds") or AXES & {*names}:
            return False
        node = self.node(names[0])
        if node is None or self.node(names[1]) is None:
            return False
        places = iterate_bits(self.translate(node.name, box.masks[node.name]) & node.domain.some)
        return all(node.releases[place].source != "none" for place in places)

    def translate(self, variable: str, mask: int) -> int:
        """Return values of a variable of the rules as values of the search.

        Where the rules have a build of a release that the index does not have, the release means that build.
        """
        own = None if variable == PYTHON else self.domain(variable)
        ruled = self.rules.domains[variable] if self.rules else None
        if own is ruled or own is None or ruled is None:
            return mask
        if variable not in self.translations:
            builds = {text.partition("+")[0]: text for text in ruled.values if "+" in text and text not in own.index}
            places = {builds.get(text, text): place for place, text in enumerate(own.values)}
            bits = [1 << places[text] if text in places else 0 for text in ruled.values]
            self.translations[variable] = [*bits, own.absent]
        table, translated = self.translations[variable], 0
        for place in iterate_bits(mask):
            translated |= table[place]
        return translated

    def domain(self, variable: str) -> ValueDomain | None:
        """Return the values of an axis or a package; `None` for a package that neither metadata nor rules know."""
        node = None if variable in AXES else self.node(variable)
        return node.domain if node else self.rules.domains.get(variable) if self.rules else None

    def all_values(self, variable: str) -> int:
        """Return all values of a variable: of an extra, that it is asked for (1) and that it is not (2)."""
        if variable == PYTHON:
            return sum(self.targets)
        domain = None if variable.endswith("]") else self.domain(variable)
        return domain.all if domain else 3

    def absence(self, variable: str) -> int:
        """Return the bit of a variable's absence; 0 for an axis."""
        if variable == PYTHON:
            return 0
        domain = None if variable.endswith("]") else self.domain(variable)
        return domain.absent if domain else 2

    def prefer(self, variable: str, mask: int, values: Mapping[str, int]) -> int:
        """Return the bit of the newest release of a mask that installers take and that the Python can install."""
        node = None if variable.endswith("]") or variable in AXES else self.node(variable)
        if node is None:
            domain = self.domain(variable)
            final = mask & domain.final if domain else 0
            return 1 << ((final or mask).bit_length() - 1) if domain else mask & -mask
        python = values.get(PYTHON, 0)
        for wanted in (mask & ~node.early, mask & node.early):
            left = wanted
            while left:
                place = left.bit_length() - 1
                if not node.is_withdrawn(place) and (
                    python not in self.targets or self.exclusion(node, place, python) is None
                ):
                    return 1 << place
                left ^= 1 << place
        return 1 << (mask.bit_length() - 1)

    def exclusion(self, node: PackageNode, place: int, python: int) -> Excludes | None:
        """Return why a release cannot be installed with a Python, of which this is the bit; `None` when it can."""
        key = place, python
        if key not in node.fits:
            node.fits[key] = _exclusion(node, node.releases[place], self.targets[python])
        return node.fits[key]

    def expand(self, variable: str, value: int) -> list[Clash]:
        """Return the clashes of one Python, release, or extra that is asked for; none when they were returned."""
        if variable == PYTHON:
            return self._expand_python(value)
        name, bracket, extra = variable.removesuffix("]").partition("[")
        node, place = None if name in AXES else self.node(name), value.bit_length() - 1
        clashes: list[Clash] = []
        if node is None:
            return clashes
        if bracket and extra not in node.extras:
            node.extras[extra] = None
            for other in node.expanded:
                clashes += self._requirements(node, other, extra, (0, *self.pythons))
        elif not bracket and node.is_withdrawn(place):
            alike = sum(1 << other for other in range(len(node.releases)) if node.is_withdrawn(other))
            clashes.append(Clash({name: alike}, Excludes(package=name, kind="withdrawn")))
        elif not bracket and place not in node.expanded:
            node.expanded[place] = None
            clashes += [clash for python in self.pythons for clash in self._exclusions(node, place, python)]
            if node.releases[place].source == "none":
                undeclared = sum(1 << other for other, release in enumerate(node.releases) if release.source == "none")
                clashes.append(Clash({name: undeclared, DECLARED: 1}, Excludes(package=name, kind="undeclared")))
            for extra in ("", *node.extras):
                clashes += self._requirements(node, place, extra, (0, *self.pythons))
        return clashes

    def _expand_python(self, python: int) -> list[Clash]:
        """Return the clashes of the releases chosen so far that depend on the Python."""
        if python in self.pythons or python not in self.targets:
            return []
        self.pythons[python] = None
        clashes: list[Clash] = []
        for node in filter(None, list(self.nodes.values())):
            for place in node.expanded:
                clashes += self._exclusions(node, place, python)
                for extra in ("", *node.extras):
                    clashes += self._requirements(node, place, extra, (python,))
        return clashes

    def _exclusions(self, node: PackageNode, place: int, python: int) -> Iterator[Clash]:
        reason = self.exclusion(node, place, python)
        if reason is not None:
            mask = 0
            for other in range(len(node.releases)):
                if self.exclusion(node, other, python) == reason:
                    mask |= 1 << other
            yield Clash({node.name: mask, PYTHON: python}, reason)

    def _requirements(self, node: PackageNode, place: int, extra: str, pythons: Sequence[int]) -> Iterator[Clash]:
        """What a release requires with some Pythons, given as bits; 0 stands for what does not depend on the Python."""
        for line in node.releases[place].requirements:
            if not extra and is_of_extra(line):
                continue
            dependency = parse_dependency(line)
            if dependency is None or bool(extra) is not bool(dependency.marked_extras):
                continue
            if extra and extra not in dependency.marked_extras:
                continue
            if dependency.name.startswith(self.unlisted.get(node.name, ("-",))):
                continue
            cause = Requires(package=node.name, dependency=dependency, extra=extra)
            for python in pythons:
                target = self.targets[python] if python else next(iter(self.targets.values()))
                if bool(python) is ("_version" in dependency.marker) and target.fulfils(dependency.marker, extra):
                    condition = {node.name: 1 << place} | ({f"{node.name}[{extra}]": 1} if extra else {})
                    condition |= {PYTHON: python} if python else {}
                    yield from self._requirement(node, condition, cause, line)

        if not extra and 0 in pythons:
            yield from self._enforced_minimums(node, place)

    def _enforced_minimums(self, node: PackageNode, place: int) -> Iterator[Clash]:
        """What a release refuses by a check of its own of packages that only its extras name: it runs without them."""

        def widen(clash: Clash) -> None:
            same = (at for at in range(len(node.releases)) if self._find_minimums(node, at).get(name) == minimum)
            clash.sets[node.name] = sum(1 << at for at in same)

        for name, minimum in self._find_minimums(node, place).items():
            other = self.node(name)
            if other is not None and (old := other.domain.some & ~specifier_mask(other.domain, f">={minimum}")):
                dependency = Dependency(
                    name=name, extras=(), specifier=f">={minimum}", marker="", marked_extras=frozenset()
                )
                sets = {node.name: 1 << place, name: old}
                yield Clash(sets, Requires(package=node.name, dependency=dependency), (), widen)

    def _find_minimums(self, node: PackageNode, place: int) -> dict[str, str]:
        """Return the least release that a release accepts of each package that it checks and that an extra names."""
        version = node.domain.values[place]
        minimums = self.rules.space.book.fact(node.name, version, "minimums") if self.rules else None
        lines = [line for line in node.releases[place].requirements if is_of_extra(line)] if minimums else []
        return {
            name: minimum
            for name, minimum in (minimums or {}).items()
            if any(
                (wanted := parse_dependency(line)) and wanted.name == name for line in lines if line.startswith(name)
            )
        }

    def required_of(self, node: PackageNode, place: int, other: str, python: int) -> Iterator[tuple[Requires, int]]:
        """Yield what a release requires of another package without extras, and the values that this excludes."""
        for clash in self._requirements(node, place, "", (0, python)):
            if isinstance(clash.cause, Requires) and clash.cause.dependency.name == other and other in clash.sets:
                yield clash.cause, clash.sets[other]

    def _requirement(
        self, node: PackageNode, condition: Mapping[str, int], cause: Requires, line: str
    ) -> Iterator[Clash]:
        dependency, place = cause.dependency, condition[node.name].bit_length() - 1

        accepted = self._accepted_releases(node, place, dependency.name)

        def widen(clash: Clash) -> None:
            same = (at for at, release in enumerate(node.releases) if line in release.requirements)
            alike = (at for at in same if self._accepted_releases(node, at, dependency.name) == accepted)
            clash.sets[node.name] = sum(1 << at for at in alike)

        other = self.node(dependency.name)
        if dependency.is_url or dependency.name in AXES:
            self.addresses.setdefault((node.name, place), []).append(dependency.name)
            return
        if other is None:
            yield Clash({**condition, dependency.name: 2}, cause, (), widen)
            return
        refused = other.domain.all & ~specifier_mask(other.domain, dependency.specifier)
        refused &= ~sum(1 << other.domain.index[text] for text in accepted if text in other.domain.index)
        if other is node or refused == other.domain.all:
            if refused >> place & 1 or other is not node:
                yield Clash(dict(condition), cause, (), widen if other is not node else None)
        else:
            yield Clash({**condition, other.name: refused}, cause, (), widen)
        for wanted in dependency.extras:
            if f"{other.name}[{wanted}]" not in condition:
                yield Clash({**condition, f"{other.name}[{wanted}]": 2}, cause, (), widen)

    def _accepted_releases(self, node: PackageNode, place: int, other: str) -> frozenset[str]:
        """Return the releases of another package that are accepted against what a release requires of it."""
        return self.waived.get((node.name, node.domain.values[place], other), frozenset())


def _exclusion(node: PackageNode, release: ReleaseDeclaration, target: ResolutionTarget) -> Excludes | None:
    if release.requires_python and not python_fits(release.requires_python, target):
        return Excludes(package=node.name, kind="python", text=release.requires_python)
    if any(tag_fits(tag, target) for tag in release.wheels):
        return None
    needs_wheel = target.wheels_only and node.name not in target.present
    if not needs_wheel and (release.has_sdist or not release.wheels):
        return None
    return Excludes(package=node.name, kind="wheel")


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
    search: Search
    target: ResolutionTarget
    """The machine and the Python for which it was resolved."""
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
    def python(self) -> Wish:
        """The wish for the Python."""
        return self.graph.python_wish(self.target.python)

    @cached_property
    def preferred_pythons(self) -> list[int]:
        """The bits of Pythons, that for which it was resolved first, then those that are used most."""
        places = {target.python: bit for bit, target in self.graph.targets.items()}
        return [self.python.mask, *(places[python] for python in USUAL_PYTHONS if python in places)]

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
    rules: BoxIndex | None = None
    """As in `RequirementGraph`."""
    _searches: dict[object, tuple[RequirementGraph, Search]] = field(default_factory=dict)

    def find_search(self, packages: Sequence[PackageSpec], target: ResolutionTarget) -> tuple[RequirementGraph, Search]:
        """Return the search for lists like this one."""
        prereleases = frozenset(package.name for package in packages if _names_prerelease(package.specifier))
        withdrawn = frozenset(
            (package.name, package.version) for package in packages if package.version and self._is_withdrawn(package)
        )
        builds = frozenset(package.name for package in packages if package.local and package.name in BUILD_PACKAGES)
        # The rules' Pythons are at the places that the rules give them.
        minors = dict.fromkeys((*(self.rules.domains[PYTHON].values if self.rules else ()), *PYTHONS, target.minor))
        pythons = tuple(target.python if minor == target.minor else minor for minor in minors)
        key = (target.with_python(""), pythons, prereleases, withdrawn, builds)
        if key not in self._searches:
            graph = RequirementGraph(
                targets={1 << place: target.with_python(python) for place, python in enumerate(pythons)},
                rules=self.rules,
                store=self.store,
                waived=self.waived,
                prereleases=prereleases,
                withdrawn=dict(withdrawn),
                unlisted={name: BUILD_PACKAGES[name] for name in builds},
            )
            self._searches[key] = graph, Search(source=graph)
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
    resolution = RequirementResolution(graph=graph, search=search, target=target, wishes={})
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
        result = resolution.search.solve([resolution.python, *wishes])
        if isinstance(result, SearchFailure):
            needed = [wish for wish in result.wishes if wish in resolution.wishes]
            result = resolution.search.find_minimal_failure(needed, [resolution.python]) or result
            resolution.conflict = _conflict(resolution, result)
            return
        settled = dict(resolution.search.settled)
        _note_solution(resolution, result)
        resolution.settled = {name: text for name, text in resolution.versions.items() if name in settled}
        if resolution.undeclared:
            # Older releases may do, whose requirements are known: then it is known that the list resolves.
            result = resolution.search.solve([Wish(DECLARED, 1), resolution.python, *wishes])
            if not isinstance(result, SearchFailure):
                _note_solution(resolution, result)
    except SearchLimitError:
        resolution.given_up = not resolution.versions


def _note_solution(resolution: RequirementResolution, result: Mapping[str, int]) -> None:
    graph = resolution.graph
    versions, unread, by_address, undeclared = {}, [], list[str](), {}
    for name, bit in result.items():
        if name.endswith("]") or name in AXES:
            continue
        node = graph.node(name)
        if node is None:
            unread.append(name)
            continue
        place = bit.bit_length() - 1
        versions[name] = node.domain.values[place]
        by_address += graph.addresses.get((name, place), [])
        if node.releases[place].source == "none":
            undeclared[name] = versions[name]
    resolution.versions, resolution.undeclared = versions, undeclared
    resolution.unread = tuple(dict.fromkeys([*unread, *by_address]))


def _conflict(resolution: RequirementResolution, failure: SearchFailure) -> Conflict:
    packages = dict.fromkeys(resolution.wishes[wish].name for wish in failure.wishes if wish in resolution.wishes)
    by_name = {package.name: package for package in resolution.wishes.values()}
    return Conflict(packages=tuple(by_name[name] for name in packages), failure=failure)
