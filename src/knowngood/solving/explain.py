"""When demands cannot be met: which collide, by which rules, and what is the least to give up. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from knowngood.solving.compiled import KEPT, Compiled, Point, Sets
from knowngood.solving.domain import Domain, bits, nearest
from knowngood.solving.solve import Search


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Something asked for: a set of values of one variable, under the name that it was asked by."""

    text: str
    variable: str
    mask: int
    owner: str = ""
    """The package that this follows from (a wheel that was compiled against a torch): given up with it."""
    rebuild: bool = False
    """Another build of the same release may do."""


def sets_of(compiled: Compiled, demands: Iterable[Demand], base: Sets) -> dict[str, int]:
    """The values that all these demands leave."""
    sets = dict(base)
    for demand in demands:
        everything = compiled.domains[demand.variable].all
        sets[demand.variable] = sets.get(demand.variable, everything) & demand.mask
    return sets


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Demands over a world; `base` holds besides them."""

    compiled: Compiled
    demands: tuple[Demand, ...]
    base: Sets
    among: int
    order: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def solve(self, demands: Sequence[Demand]) -> Point | None:
        """The best assignment under some of the demands."""
        search = Search(compiled=self.compiled, among=self.among, order=self.order)
        return search.first(sets_of(self.compiled, demands, self.base))

    def possible(self, demands: Sequence[Demand]) -> bool:
        """Whether some of the demands can be met together."""
        search = Search(compiled=self.compiled, among=self.among)
        return search.exists(sets_of(self.compiled, demands, self.base))


def minimal_conflict(problem: Problem) -> list[Demand]:
    """Demands that cannot be met together, of which none can be left out; empty when all can be met."""
    kept = list(problem.demands)
    if problem.possible(kept):
        return []
    for demand in problem.demands:
        fewer = [item for item in kept if item is not demand]
        if not problem.possible(fewer):
            kept = fewer
    return kept


def minimal_rules(problem: Problem, demands: Sequence[Demand]) -> list[int]:
    """Boxes (one for each rule that matters) that together exclude these demands; without any one rule they do not."""
    sets = sets_of(problem.compiled, demands, problem.base)
    known, key = problem.compiled.conflicts, (problem.among, tuple(sorted(sets.items())))
    if key not in known:
        if len(known) > KEPT:
            known.clear()
        known[key] = _minimal_rules(problem, sets)
    return known[key]


def _minimal_rules(problem: Problem, sets: Sets) -> list[int]:
    boxes = problem.compiled.boxes
    by_rule: dict[str, int] = {}
    for bit in bits(problem.among):
        by_rule[boxes[bit].rule.id] = by_rule.get(boxes[bit].rule.id, 0) | 1 << bit

    def proof(names: Iterable[str] | None) -> int | None:
        among = problem.among if names is None else sum(by_rule[name] for name in names)
        return Search(compiled=problem.compiled, among=among).proof(sets)

    used = proof(None)
    if used is None:
        return []
    kept = list(dict.fromkeys(boxes[bit].rule.id for bit in bits(used)))
    for name in list(kept):
        fewer = [item for item in kept if item != name]
        if proof(fewer) is not None:
            kept = fewer
    last = proof(kept) or 0
    chosen: dict[str, int] = {}
    # Of a rule's boxes the one about the newest releases tells most.
    for bit in sorted(bits(last), key=lambda place: -sum(mask.bit_length() for mask in boxes[place].masks.values())):
        chosen.setdefault(boxes[bit].rule.id, bit)
    return [chosen[name] for name in kept if name in chosen]


def relaxation(
    problem: Problem, demand: Demand, others: Sequence[Demand], within: int | None = None
) -> tuple[int, Point] | None:
    """The nearest value of a demand's variable that goes with the other demands, and an assignment that has it.

    Only values at less than the distance `within` count.
    """
    domain = problem.compiled.domains[demand.variable]
    if not problem.possible(others):
        return None
    allowed = sets_of(problem.compiled, others, problem.base).get(demand.variable, domain.all)
    outside = problem.compiled.outside[demand.variable]
    tried: set[int] = set()
    for place in nearest(domain, allowed & ~demand.mask, demand.mask):
        if outside[place] in tried or (within is not None and distance(domain, place, demand.mask) >= within):
            continue
        tried.add(outside[place])
        one = [*others, Demand(text="", variable=demand.variable, mask=1 << place)]
        if problem.possible(one):
            found = problem.solve(one)
            return None if found is None else (place, found)
    return None


def smallest_change(problem: Problem, changeable: Sequence[Demand]) -> dict[str, int] | None:
    """The fewest demands to give up, then the nearest values instead: variable -> place.

    Between changes of as many variables, the one with the least sum of distances in releases is taken.
    """
    compiled = problem.compiled
    point, _ = compiled.fixed(sets_of(compiled, problem.demands, problem.base), problem.among)
    # Whatever is changed, each rule that is broken now must lose one of its values.
    broken = [frozenset(compiled.boxes[bit].masks) for bit in bits(compiled.broken(point, problem.among))]
    for count in range(1, len(changeable) + 1):
        best: _Change | None = None
        for chosen in itertools.combinations(changeable, count):
            changed = {demand.variable for demand in chosen}
            changed |= {demand.variable for demand in problem.demands if demand.owner in changed}
            if any(scope.isdisjoint(changed) for scope in broken):
                continue
            ways = _Changes.of(problem, chosen)
            if ways is not None:
                best = ways.nearer(best)
        if best is not None:
            return best.places
    return None


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Values instead of those asked for, and how far they are from them."""

    places: dict[str, int]
    distance: int


_FEW = 3
"""As many values are tried as soon as it is asked whether any fits."""


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """The ways to change a few demands while the others are kept."""

    problem: Problem
    open: list[tuple[str, int]]
    """The variables that are neither kept nor changed, with what they may be."""
    point: Point
    """The kept demands of one value."""
    live: int
    """The boxes that those values are inside of."""
    ways: list[tuple[str, list[tuple[int, int]]]]
    """Variable -> (distance, place), nearest first, one of each kind of value, none that collides with what is kept."""

    @classmethod
    def of(cls, problem: Problem, chosen: Sequence[Demand]) -> _Changes | None:
        """With what does not depend on the values tried worked out; `None` when what is kept collides already."""
        compiled = problem.compiled
        given_up = {demand.variable for demand in chosen}
        kept = [item for item in problem.demands if item not in chosen and item.owner not in given_up]
        sets = sets_of(compiled, kept, problem.base)
        point, live = compiled.fixed(sets, problem.among)
        for name in given_up & point.keys():
            # The one value that is left for it is a way like any other.
            del point[name]
        live = problem.among
        for name, place in point.items():
            live &= ~compiled.outside[name][place]
        if live & compiled.within(frozenset(point)):
            return None
        ways = []
        for demand in chosen:
            domain = compiled.domains[demand.variable]
            allowed = sets.get(demand.variable, domain.all) & ~(0 if demand.rebuild else demand.mask)
            outside = compiled.outside[demand.variable]
            within = compiled.within(frozenset((*point, demand.variable)))
            kinds: dict[int, tuple[int, int]] = {}
            for cost, place in _ways(compiled, demand.variable, allowed, demand.mask):
                left = live & ~outside[place]
                if not left & within and left not in kinds:
                    kinds[left] = (cost, place)
            if not kinds:
                return None
            ways.append((demand.variable, list(kinds.values())))
        # The variable with the fewest ways first: it decides soonest.
        ways.sort(key=lambda way: len(way[1]))
        open_, live = compiled.open(sets, {*point, *given_up}, live)
        if len(ways) > 1 or len(ways[0][1]) > _FEW:
            free = [*open_, *((name, sum(1 << place for _, place in places)) for name, places in ways)]
            if not Search(compiled=compiled, among=problem.among).decide(free, live, frozenset(point)):
                return None
        return cls(problem=problem, open=open_, point=point, live=live, ways=ways)

    def nearer(self, best: _Change | None) -> _Change | None:
        """The best of `best` and all these ways."""
        return self._extend({}, self.live, 0, best)

    def _extend(self, places: dict[str, int], live: int, spent: int, best: _Change | None) -> _Change | None:
        compiled = self.problem.compiled
        if len(places) == len(self.ways):
            done = frozenset((*self.point, *places))
            search = Search(compiled=compiled, among=self.problem.among)
            return _Change(places=places, distance=spent) if search.decide(self.open, live, done) else best
        variable, ways = self.ways[len(places)]
        within = compiled.within(frozenset((*self.point, *places, variable)))
        outside = compiled.outside[variable]
        for cost, place in ways:
            if best is not None and spent + cost >= best.distance:
                break
            left = live & ~outside[place]
            if not left & within:
                best = self._extend({**places, variable: place}, left, spent + cost, best)
        return best


def _ways(compiled: Compiled, name: str, allowed: int, anchor: int) -> list[tuple[int, int]]:
    """Distances and places of a set, nearest first, one of each kind that any box tells apart."""
    key = (name, allowed, anchor)
    known = compiled.ways.get(key)
    if known is None:
        domain, outside = compiled.domains[name], compiled.outside[name]
        found: dict[int, tuple[int, int]] = {}
        for place in nearest(domain, allowed, anchor):
            if outside[place] not in found:
                found[outside[place]] = (distance(domain, place, anchor), place)
        known = compiled.ways[key] = list(found.values())
    return known


def distance(domain: Domain, place: int, anchor: int) -> int:
    """How many releases lie between; giving a package up is further than any release of it.

    Names without an order stand in the order in which they are fallen back on.
    """
    if domain.unordered:
        return place
    if place >= len(domain.values):
        return len(domain.values) + 1
    places = list(bits(anchor & domain.some))
    return max(min(places) - place, place - max(places), 0) if places else len(domain.values)
