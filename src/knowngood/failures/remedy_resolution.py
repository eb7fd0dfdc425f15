"""Whether what a remedy installs can be installed beside the versions in a log, by what all of them require. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from knowngood.compat.conflicts import move_cost
from knowngood.compat.dependency_markers import ResolutionTarget
from knowngood.compat.metadata_store import MetadataStore, PackageReleases
from knowngood.compat.query import PackageSpec
from knowngood.compat.requirement_resolution import RequirementSearches, resolve_packages
from knowngood.compat.requirement_solver import SearchFailure, SearchLimitError, Wish
from knowngood.compat.resolution_findings import conflict_finding
from knowngood.compat.value_domain import iterate_bits
from knowngood.core.lazy_patterns import lazy_pattern

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
            wishes, prefer = [], {}
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
