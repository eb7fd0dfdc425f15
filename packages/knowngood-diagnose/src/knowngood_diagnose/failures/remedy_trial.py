"""Remedies tried against all versions in a log: what to install for each, or why it does not go with the rest. Pure.

The ranges of a remedy become the releases nearest to those in the log with which neither a rule nor an incident of the
log is broken, and whose requirements can be resolved beside the rest. What a changed package pins exactly (torch its
triton) follows it, as with an installer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from knowngood.core.errors import UsageError
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.diagnosis import Remedy, render_install_command
from knowngood_facts.compat.demands import (
    Demand,
    DemandProblem,
    find_minimal_conflict,
    find_minimal_rules,
    move_cost,
)
from knowngood_facts.compat.dependency_markers import ResolutionTarget
from knowngood_facts.compat.findings import AXES, fill_template
from knowngood_facts.compat.query import PackageSpec, Query, pinned_package
from knowngood_facts.compat.query_placement import place_query
from knowngood_facts.compat.requirement_graph import RequirementSearches, resolve_packages
from knowngood_facts.compat.resolution_findings import conflict_finding
from knowngood_facts.compat.search import SearchFailure, SearchLimitError, Wish
from knowngood_facts.compat.value_domain import iterate_bits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from knowngood_diagnose.failures.diagnosis import Diagnosis, IncidentMatch
    from knowngood_facts.compat.incident import Fix
    from knowngood_facts.compat.metadata_store import MetadataStore, PackageReleases
    from knowngood_facts.compat.universe import Universe

_PYTHONS = ("3.11", "3.10", "3.12", "3.9")
"""The Pythons for which it is resolved when the log states none, the first first."""

_NAME, _SEPARATORS = lazy_pattern(r"[\w.-]+"), lazy_pattern(r"[-_.]+")


@dataclass(frozen=True, kw_only=True)
class LogResolution:
    """The packages of a log with their metadata."""

    searches: RequirementSearches
    pythons: tuple[str, ...]
    installed: Mapping[str, PackageSpec]
    """Package -> its release in the log."""
    _settled: dict[frozenset[tuple[str, str]], tuple[dict[str, str], str]] = field(default_factory=dict)
    """What was asked before, with its answer."""
    _together: set[tuple[frozenset[str], frozenset[tuple[str, str]]]] = field(default_factory=set)
    """The packages of the log with which a search found some releases to go, and those releases."""

    @classmethod
    def of(cls, store: MetadataStore, packages: Sequence[PackageSpec], python: str | None) -> LogResolution:
        """Take the packages of a log that have metadata of their release.

        Args:
            store: the metadata.
            packages: each package once, with its release.
            python: the Python of the log, if it states one.
        """
        known = {item.name: item for item in packages if (node := store.find_package(item.name)) and node.wanted(item)}
        pythons = (python,) if python and re.fullmatch(r"3\.\d+(?:\.\d+)?", python) else _PYTHONS
        return cls(searches=RequirementSearches(store=store), pythons=pythons, installed=known)

    def settle(self, wanted: Mapping[str, str]) -> tuple[dict[str, str], str]:
        """Return the releases in these ranges nearest to the log's that go with the rest, or why there are none.

        Args:
            wanted: package -> specifier.

        Returns:
            Package -> release, of those packages that have metadata; and an empty text. When they cannot be installed
            beside the rest, no releases, and the reason.
        """
        key = frozenset(wanted.items())
        if key not in self._settled:
            self._settled[key] = self._settle(wanted)
        return self._settled[key]

    def _settle(self, wanted: Mapping[str, str]) -> tuple[dict[str, str], str]:
        changed = [
            spec
            for name, text in wanted.items()
            if (node := self._package(name)) and node.wanted(spec := PackageSpec(name=name, specifier=text))
        ]
        if not changed:
            return {}, ""
        kept = [item for name, item in self.installed.items() if name not in wanted]
        exact = self._exact_releases(changed)
        if (frozenset(item.name for item in kept), frozenset(exact.items())) in self._together:
            return exact, ""
        pins, reason = self._solve_for_pythons(changed, kept)
        if pins is None:
            followers = self._required_by(item.name for item in changed)
            fewer = [item for item in kept if item.name not in followers]
            if len(fewer) < len(kept):
                pins, _ = self._solve_for_pythons(changed, fewer)
        return ({}, reason) if pins is None else (pins, "")

    def _solve_for_pythons(
        self, changed: Sequence[PackageSpec], others: Sequence[PackageSpec]
    ) -> tuple[dict[str, str] | None, str]:
        """The releases of the first Python for which there are some, else why there are none for the first."""
        reason = ""
        for python in self.pythons:
            pins, failure = self._solve(changed, others, python)
            if pins is not None:
                return pins, ""
            reason = reason or failure
        return None, reason

    def _solve(
        self, changed: Sequence[PackageSpec], others: Sequence[PackageSpec], python: str
    ) -> tuple[dict[str, str] | None, str]:
        while True:
            packages = [*changed, *others]
            graph, search = self.searches.find_search(packages, ResolutionTarget(python=python))
            wishes, prefer = [graph.python_wish(python)], {}
            for item in packages:
                node = self._package(item.name)
                mask = node.wanted(item) if node else 0
                if node is None or not mask:
                    continue
                if item in changed:
                    mask &= ~sum(1 << place for place in range(len(node.releases)) if node.releases[place].yanked)
                    mask = mask & node.domain.final or mask
                    prefer[item.name] = [1 << place for place in self._nearest(node, mask)]
                wishes.append(Wish(item.name, mask))
            try:
                result = search.solve(wishes, prefer)
            except SearchLimitError:
                return {}, ""
            if not isinstance(result, SearchFailure):
                break
            whole = resolve_packages(packages, ResolutionTarget(python=python), self.searches)
            if whole.conflict is None:
                return None, "it does not resolve with the rest of the log"
            colliding = {item.name for item in whole.conflict.packages}
            if not colliding.isdisjoint(item.name for item in changed):
                return None, re.split(r"[,;] you have ", conflict_finding(whole, whole.conflict).because)[0]
            others = [item for item in others if item.name not in colliding]  # the log itself has such a collision
        pins = {}
        for item in changed:
            place = result[item.name].bit_length() - 1
            pins[item.name] = graph.store.find_package(item.name).domain.text(place)  # type: ignore[union-attr]
        self._together.add((frozenset(item.name for item in others), frozenset(pins.items())))
        return pins, ""

    def _exact_releases(self, changed: Sequence[PackageSpec]) -> dict[str, str]:
        """The packages of which a request means exactly one release, with that release."""
        exact = {}
        for item in changed:
            node = self._package(item.name)
            mask = node.wanted(item) if node else 0
            if node and mask and not mask & (mask - 1):
                exact[item.name] = node.domain.text(mask.bit_length() - 1)
        return exact

    def _nearest(self, node: PackageReleases, mask: int) -> list[int]:
        """The places of a mask, the nearest to the installed release first; the newest first without one."""
        own = self.installed.get(node.domain.name)
        anchor = node.wanted(own) if own else 0
        places = list(iterate_bits(mask))
        if not anchor:
            return places[::-1]
        return sorted(places, key=lambda place: (move_cost(node.domain, place, anchor), -place))

    def _package(self, name: str) -> PackageReleases | None:
        return self.searches.store.find_package(name)

    def _required_by(self, names: Iterable[str]) -> set[str]:
        """The packages that these require themselves: an installer changes them too when it must."""
        texts: set[str] = set()
        for node in filter(None, map(self._package, names)):
            for place in range(len(node.releases)):
                texts.update(node.releases[place].requirements)
        required = {match[0] for text in texts if "extra ==" not in text and (match := _NAME.match(text))}
        return {_SEPARATORS.sub("-", name).lower() for name in required} - {"torch"}


_TORCH = frozenset(("torch", "triton", "cuda", "driver"))
"""The components whose faults another torch cures."""

NOT_INSTALLED = AXES | {"cuda"}
"""The variables that pip does not install."""


def try_remedies(diagnosis: Diagnosis, universe: Universe) -> Diagnosis:
    """Return the diagnosis with its remedies tried, and with the smallest change that fixes all failures."""
    environment = LogEnvironment.of(universe, diagnosis.versions)
    matches = [replace(match, fix=tuple(environment.try_remedies_of(match))) for match in diagnosis.matches]
    failures = [match for match in matches if match.incident.severity == "failure"]
    # A failure after the first that no version confirms may be only a consequence of the first.
    sure = [match for match in failures if match.confirmed or match is failures[0]]
    pins = environment.find_common_change(sure, diagnosis.versions)
    return replace(diagnosis, matches=tuple(matches), install=render_install_command(pins) if pins else "")


@dataclass(frozen=True, kw_only=True)
class LogEnvironment:
    """The universe, and the versions in a log as demands on it."""

    universe: Universe
    demands: tuple[Demand, ...]
    at_hand: Mapping[str, int]
    """Variable -> the values that the log shows, whether they became a demand or not."""
    resolution: LogResolution
    """The packages of the log with what they require."""

    @classmethod
    def of(cls, universe: Universe, versions: Mapping[str, Sequence[str]]) -> LogEnvironment:
        """Take what the log gives one version of, and leave out what collides with what was taken before."""
        universe.begin_question()
        single = {name: version for name, texts in versions.items() if (version := _single_version(texts))}
        query = _query_from_versions(universe, single)
        try:
            demands = place_query(universe, query).demands
        except UsageError:
            demands = []
        problem = DemandProblem(index=universe.index, demands=(), base={}, among=universe.index.errors)
        kept: list[Demand] = []
        for demand in demands:
            if problem.possible([*kept, demand]):
                kept.append(demand)
        at_hand = {demand.variable: demand.mask for demand in demands}
        listed = (_pinned_or_none(name, version) for name, version in single.items() if name not in NOT_INSTALLED)
        resolution = LogResolution.of(universe.metadata, [item for item in listed if item], single.get("python"))
        return cls(universe=universe, demands=tuple(kept), at_hand=at_hand, resolution=resolution)

    def try_remedies_of(self, match: IncidentMatch) -> list[Remedy]:
        """Return the remedies of a match: first those with releases that go with the rest, last those without any."""
        among = self._among([match.incident.id])
        remedies = [remedy if remedy.undecided else self._try(remedy.fix, among) for remedy in match.fix]
        return sorted(remedies, key=lambda remedy: (bool(remedy.broken_by), not remedy.pins))

    def find_common_change(self, failures: Sequence[IncidentMatch], packages: Collection[str]) -> dict[str, str]:
        """Return the smallest change that contains a remedy of each failure, as far as there is one.

        A remedy counts when it changes at least one of these packages, which the log shows.
        """
        ranges: dict[str, str] = {}
        pins: dict[str, str] = {}
        names: list[str] = []
        for match in failures:
            names.append(match.incident.id)
            usable = (item for item in match.fix if item.pins.keys() & set(packages))
            # Another torch changes all that is compiled against it: it is no cure for the fault of another package.
            mild = (item for item in usable if "torch" not in item.pins or match.incident.component in _TORCH)
            possible = sorted(mild, key=lambda item: len(item.pins))
            for remedy in possible:
                joined = _join_ranges(ranges, remedy.fix.change)
                settled = self._settle(joined, self._among(names))
                if settled is not None:
                    ranges, pins = joined, settled
                    break
            else:
                names.pop()
        return pins

    def _among(self, incidents: Sequence[str]) -> int:
        """The boxes that must be avoided: those of errors, and those of these incidents."""
        index = self.universe.index
        mask = index.errors
        for name in incidents:
            mask |= index.boxes_of_rule.get(name, 0)
        return mask & self._judged

    @cached_property
    def _judged(self) -> int:
        """The boxes that are only about axes and packages whose facts were read.

        Of another package, such as a torch that the log does not show, any release may be there.
        """
        known = AXES | {"cuda"} | set(self.universe.packages)
        boxes = self.universe.index.boxes
        return sum(1 << bit for bit, box in enumerate(boxes) if box.masks.keys() <= known)

    def _try(self, fix: Fix, among: int) -> Remedy:
        wanted = _join_ranges({}, fix.change)
        if not wanted:
            return Remedy(fix=fix)
        pins = self._settle(wanted, among)
        return Remedy(fix=fix, broken_by=self._why(wanted, among)) if pins is None else Remedy(fix=fix, pins=pins)

    def _settle(self, wanted: Mapping[str, str], among: int) -> dict[str, str] | None:
        """The releases in these ranges that are nearest to those in the log and go with the rest; `None` if none do."""
        domains = self.universe.index.domains
        chosen, reason = self.resolution.settle(_installable(wanted))
        if reason:
            return None
        pins = {
            name: text for name, text in wanted.items() if name not in domains and name not in NOT_INSTALLED
        } | chosen
        covered = {name: text for name, text in wanted.items() if self._has_release(name, text)}
        if not covered:  # no rule is about what changes
            return pins
        problem = self._problem(covered, among)
        demands = list(problem.demands)
        if not problem.possible(demands):
            return None
        for name in covered.keys() - NOT_INSTALLED:
            domain = domains[name]
            mask = problem.allowed(name, demands) & domain.some
            places = domain.nearest_places(mask, self.at_hand.get(name, 0))
            if name in chosen and chosen[name] in domain.index:
                places = [domain.index[chosen[name]], *places]
            for place in places:
                one = Demand(text=name, variable=name, mask=1 << place)
                if problem.possible([*demands, one]) and self._resolves({**wanted, **pins, name: domain.text(place)}):
                    demands.append(one)
                    pins[name] = domain.text(place)
                    break
            else:
                return None
        return pins

    def _has_release(self, name: str, text: str) -> bool:
        """Whether facts cover any release in a range."""
        known = name in self.universe.selectable or name in NOT_INSTALLED
        return known and name in self.universe.index.domains and bool(self.universe.index.domains[name].mask(text))

    def _resolves(self, pins: Mapping[str, str]) -> bool:
        return not self.resolution.settle(_installable(pins))[1]

    def _problem(self, wanted: Mapping[str, str], among: int) -> DemandProblem:
        index = self.universe.index
        kept = [item for item in self.demands if item.variable not in wanted and not self._follows(item, wanted)]
        changed = [
            Demand(text=f"{name}{text}", variable=name, mask=index.domains[name].mask(text))
            for name, text in wanted.items()
            if name in index.domains
        ]
        base = dict(self.universe.selectable)
        for demand in kept:
            if demand.variable in base:
                base[demand.variable] |= demand.mask
        return DemandProblem(index=index, demands=(*kept, *changed), base=base, among=among)

    def _follows(self, demand: Demand, changed: Iterable[str]) -> bool:
        """Whether releases of a changed package pin this one exactly, so that it is changed too."""
        book = self.universe.space.book
        releases = ((name, version) for name in changed for version in book.versions(name))
        return any(book.requires(name, version).get(demand.variable, "").startswith("==") for name, version in releases)

    def _why(self, wanted: Mapping[str, str], among: int) -> str:
        """What requires something else, else the rules that a minimal set of demands breaks.

        Rules of incidents are named only when others do not suffice.
        """
        _, reason = self.resolution.settle(_installable(wanted))
        if reason:
            return reason
        wanted = {name: text for name, text in wanted.items() if self._has_release(name, text)}
        problem = self._problem(wanted, self._among([]))
        if problem.possible(problem.demands):
            problem = self._problem(wanted, among)
        demands = find_minimal_conflict(problem)
        space = self.universe.space
        assignment = {item.variable: item.mask.bit_length() - 1 for item in demands if not item.mask & (item.mask - 1)}
        boxes = find_minimal_rules(problem, demands)
        reasons = dict.fromkeys(
            fill_template(space, box.rule.because, box, assignment, {}).partition(". ")[0] for box in boxes
        )
        return "; ".join(reasons) or f"no release is {' '.join(demand.text for demand in demands)}"


def _installable(wanted: Mapping[str, str]) -> dict[str, str]:
    """The packages among what a remedy changes, with specifiers."""
    return {
        name: text if text[:1] in "<>=!~" else f"=={text}" for name, text in wanted.items() if name not in NOT_INSTALLED
    }


def _single_version(versions: Sequence[str]) -> str | None:
    """The one version of something in a log, which may be more exact in one place than in another (3.10, 3.10.14)."""
    longest = max(versions, key=len)
    return longest if all(re.match(rf"{re.escape(text)}(?![\d])", longest) for text in versions) else None


def _join_ranges(ranges: Mapping[str, str], change: Mapping[str, str]) -> dict[str, str]:
    """The ranges of both; `*` demands nothing."""
    joined = dict(ranges)
    for name, text in change.items():
        if text != "*":
            joined[name] = ",".join(filter(None, [joined.get(name, ""), text]))
    return joined


def _query_from_versions(universe: Universe, versions: Mapping[str, str]) -> Query:
    """The query that has those versions of a log that facts cover."""
    gpu = f"sm_{versions['gpu']}" if "gpu" in versions and f"sm_{versions['gpu']}" in universe.gpus.names else None
    axes = {name: version for name, version in versions.items() if name in AXES and name != "gpu"}
    packages = (_pinned_or_none(name, version) for name, version in versions.items() if name in universe.packages)
    return Query(gpu=gpu, axes=axes, packages=tuple(item for item in packages if item is not None))


def _pinned_or_none(name: str, version: str) -> PackageSpec | None:
    public, _, local = version.partition("+")
    try:
        return replace(pinned_package(name, public, local or None), explicit=False, wheel=None)
    except UsageError:
        return None
