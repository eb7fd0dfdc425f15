"""Remedies tried against everything that a log says is there: what to install for each, or why it does not go. Pure.

A remedy's ranges are settled to the releases nearest to those at hand with which no rule is broken, nor an incident
that stands in the log. What a changed package pins exactly (torch its triton) follows it, as with an installer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.diagnosing.remedy import Remedy, install
from knowngood.errors import UsageError
from knowngood.incidents.model import Fix
from knowngood.solving.domain import nearest
from knowngood.solving.explain import Demand, Problem, minimal_conflict, minimal_rules, sets_of
from knowngood.solving.findings import AXES, word
from knowngood.solving.placing import place
from knowngood.solving.query import Request, Wanted, pinned
from knowngood.solving.suggesting import universe_allowed
from knowngood.solving.universe import Universe

if TYPE_CHECKING:
    from knowngood.diagnosing.diagnose import Diagnosis, Match

NOT_INSTALLED = AXES | {"cuda"}
"""What pip does not install."""


def judged(diagnosis: Diagnosis, universe: Universe) -> Diagnosis:
    """The same, with the remedies of its matches tried, and the smallest change that mends all failures."""
    around = Surroundings.of(universe, diagnosis.versions)
    matches = [replace(match, fix=tuple(around.tried(match))) for match in diagnosis.matches]
    failures = [match for match in matches if match.incident.severity == "failure"]
    # What comes after the first and is not confirmed is perhaps only its consequence.
    sure = [match for match in failures if match.confirmed or match is failures[0]]
    pins = around.merged(sure, diagnosis.versions)
    return replace(diagnosis, matches=tuple(matches), install=install(pins) if pins else "")


def concerned(diagnosis: Diagnosis) -> set[str]:
    """The packages of which facts are needed to try the remedies; none when there is nothing to try."""
    changed = {name for match in diagnosis.matches for remedy in match.fix for name in remedy.fix.change}
    return changed | set(diagnosis.versions) if changed and diagnosis.versions else set()


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The universe, and the demands of what the log shows to be there."""

    universe: Universe
    demands: tuple[Demand, ...]
    at_hand: Mapping[str, int]
    """Variable -> the values of it that the log shows, kept as a demand or not."""

    @classmethod
    def of(cls, universe: Universe, versions: Mapping[str, Sequence[str]]) -> Surroundings:
        """What the log gives one version of, as far as it goes together: what collides already says nothing more."""
        request = _request(universe, {name: one for name, seen in versions.items() if (one := _one(seen))})
        try:
            demands = place(universe, request).demands
        except UsageError:
            demands = []
        problem = Problem(compiled=universe.compiled, demands=(), base={}, among=universe.compiled.hard)
        kept: list[Demand] = []
        for demand in demands:
            if problem.possible([*kept, demand]):
                kept.append(demand)
        at_hand = {demand.variable: demand.mask for demand in demands}
        return cls(universe=universe, demands=tuple(kept), at_hand=at_hand)

    def tried(self, match: Match) -> list[Remedy]:
        """A match's remedies in their order, those that do not go with the rest last."""
        among = self._among([match.incident.id])
        made = [self._try(remedy.fix, among) for remedy in match.fix]
        return [*(item for item in made if not item.broken_by), *(item for item in made if item.broken_by)]

    def merged(self, failures: Sequence[Match], seen: Collection[str]) -> dict[str, str]:
        """The smallest change that holds a remedy for each of several failures, as far as there is one.

        A remedy counts when the log shows at least one of the packages that it changes.
        """
        ranges: dict[str, str] = {}
        pins: dict[str, str] = {}
        names: list[str] = []
        for match in failures:
            names.append(match.incident.id)
            known = (item for item in match.fix if item.pins.keys() & set(seen))
            possible = sorted(known, key=lambda item: len(item.pins))
            for remedy in possible:
                joined = _joined(ranges, remedy.fix.change)
                settled = self._settle(joined, self._among(names))
                if settled is not None:
                    ranges, pins = joined, settled
                    break
            else:
                names.pop()
        return pins

    def _among(self, incidents: Sequence[str]) -> int:
        """The boxes that must not be met: those of errors, and of the incidents that were seen."""
        compiled = self.universe.compiled
        mask = compiled.hard
        for name in incidents:
            mask |= compiled.of_rule.get(name, 0)
        return mask

    def _try(self, fix: Fix, among: int) -> Remedy:
        wanted = _joined({}, fix.change)
        if not wanted:
            return Remedy(fix=fix)
        pins = self._settle(wanted, among)
        return Remedy(fix=fix, broken_by=self._why(wanted, among)) if pins is None else Remedy(fix=fix, pins=pins)

    def _settle(self, wanted: Mapping[str, str], among: int) -> dict[str, str] | None:
        """The releases in these ranges nearest to those at hand that go with the rest; `None` when none do."""
        domains = self.universe.compiled.domains
        problem = self._problem(wanted, among)
        demands = list(problem.demands)
        if not problem.possible(demands):
            return None
        pins = {name: text for name, text in wanted.items() if name not in domains and name not in NOT_INSTALLED}
        for name in wanted:
            if name in domains and name not in NOT_INSTALLED:
                domain = domains[name]
                mask = sets_of(problem.compiled, demands, problem.base)[name]
                for at in nearest(domain, mask & domain.some, self.at_hand.get(name, 0)):
                    one = Demand(text=name, variable=name, mask=1 << at)
                    if problem.possible([*demands, one]):
                        demands.append(one)
                        pins[name] = domain.text(at)
                        break
        return pins

    def _problem(self, wanted: Mapping[str, str], among: int) -> Problem:
        compiled = self.universe.compiled
        kept = [item for item in self.demands if item.variable not in wanted and not self._follows(item, wanted)]
        asked = [
            Demand(text=f"{name}{text}", variable=name, mask=compiled.domains[name].mask(text))
            for name, text in wanted.items()
            if name in compiled.domains
        ]
        base = dict(universe_allowed(self.universe))
        for demand in kept:
            if demand.variable in base:
                base[demand.variable] |= demand.mask
        return Problem(compiled=compiled, demands=(*kept, *asked), base=base, among=among)

    def _follows(self, demand: Demand, changed: Iterable[str]) -> bool:
        """Whether releases of a changed package pin this one exactly, so that it is changed too."""
        book = self.universe.world.book
        releases = ((name, version) for name in changed for version in book.versions(name))
        return any(book.requires(name, version).get(demand.variable, "").startswith("==") for name, version in releases)

    def _why(self, wanted: Mapping[str, str], among: int) -> str:
        """The rules by which the smallest set of colliding demands does; without the incidents, where that suffices."""
        problem = self._problem(wanted, self.universe.compiled.hard)
        if problem.possible(problem.demands):
            problem = self._problem(wanted, among)
        demands = minimal_conflict(problem)
        world = self.universe.world
        point = {item.variable: item.mask.bit_length() - 1 for item in demands if not item.mask & (item.mask - 1)}
        boxes = [world.boxes[bit] for bit in minimal_rules(problem, demands)]
        told = dict.fromkeys(word(world, box.rule.because, box, point, {}).partition(". ")[0] for box in boxes)
        return "; ".join(told) or f"no release is {' '.join(demand.text for demand in demands)}"


def _one(seen: Sequence[str]) -> str | None:
    """The one version that a log gives something, perhaps more exactly in one place than in another (3.10, 3.10.14)."""
    whole = max(seen, key=len)
    return whole if all(re.match(rf"{re.escape(text)}(?![\d])", whole) for text in seen) else None


def _joined(ranges: Mapping[str, str], change: Mapping[str, str]) -> dict[str, str]:
    """Both ranges at once; `*` asks for nothing."""
    joined = dict(ranges)
    for name, text in change.items():
        if text != "*":
            joined[name] = ",".join(filter(None, [joined.get(name, ""), text]))
    return joined


def _request(universe: Universe, seen: Mapping[str, str]) -> Request:
    """What facts are about, of what a log shows."""
    gpu = f"sm_{seen['gpu']}" if "gpu" in seen and f"sm_{seen['gpu']}" in universe.gpus.names else None
    axes = {name: version for name, version in seen.items() if name in AXES and name != "gpu"}
    packages = (_pinned(name, version) for name, version in seen.items() if name in universe.packages)
    return Request(gpu=gpu, axes=axes, packages=tuple(item for item in packages if item is not None))


def _pinned(name: str, version: str) -> Wanted | None:
    public, _, local = version.partition("+")
    try:
        return replace(pinned(name, public, local or None), named=False, wheel=None)
    except UsageError:
        return None
