"""When demands cannot be met: which collide, by which rules, and what is the least to give up. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from knowngood.domain import Domain, bits, nearest
from knowngood.solve import Compiled, Point, Search, Sets


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Something asked for: a set of values of one variable, under the name that it was asked by."""

    text: str
    variable: str
    mask: int
    given: int = 0
    """Boxes that count because of it (`--with`), for a demand on no variable."""


def sets_of(compiled: Compiled, demands: Iterable[Demand], base: Sets | None = None) -> tuple[dict[str, int], int]:
    """The values that all these demands leave, and the boxes that they make count."""
    sets, given = dict(base or {}), 0
    for demand in demands:
        given |= demand.given
        if demand.variable:
            everything = compiled.domains[demand.variable].all
            sets[demand.variable] = sets.get(demand.variable, everything) & demand.mask
    return sets, given


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Demands over a world; `base` holds besides them."""

    compiled: Compiled
    demands: tuple[Demand, ...]
    base: Sets
    among: int
    variables: tuple[str, ...] | None = None
    order: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def solve(self, demands: Sequence[Demand], among: int | None = None) -> tuple[Point | None, int]:
        """The best assignment under some of the demands, and the boxes that excluded something."""
        sets, given = sets_of(self.compiled, demands, self.base)
        search = Search(
            compiled=self.compiled, among=(self.among if among is None else among) | given, order=self.order
        )
        return search.first(sets, self.variables), search.used


def minimal_conflict(problem: Problem) -> list[Demand]:
    """Demands that cannot be met together, of which none can be left out; empty when all can be met."""
    kept = list(problem.demands)
    if problem.solve(kept)[0] is not None:
        return []
    for demand in problem.demands:
        fewer = [item for item in kept if item is not demand]
        if problem.solve(fewer)[0] is None:
            kept = fewer
    return kept


def minimal_rules(problem: Problem, demands: Sequence[Demand]) -> list[int]:
    """Boxes (one for each rule that matters) that together exclude these demands; without any one rule they do not."""
    found, used = problem.solve(demands)
    if found is not None:
        return []
    boxes = problem.compiled.boxes
    by_rule: dict[str, int] = {}
    _, given = sets_of(problem.compiled, demands)
    for bit in bits(problem.among | given):
        by_rule[boxes[bit].rule.id] = by_rule.get(boxes[bit].rule.id, 0) | 1 << bit
    kept = list(dict.fromkeys(boxes[bit].rule.id for bit in bits(used)))

    def impossible(names: Iterable[str]) -> int | None:
        sets, _ = sets_of(problem.compiled, demands, problem.base)
        search = Search(compiled=problem.compiled, among=sum(by_rule[name] for name in names), order=problem.order)
        return search.used if search.first(sets, problem.variables) is None else None

    for name in list(kept):
        fewer = [item for item in kept if item != name]
        if impossible(fewer) is not None:
            kept = fewer
    last = impossible(kept) or 0
    chosen: dict[str, int] = {}
    for bit in bits(last):
        chosen.setdefault(boxes[bit].rule.id, bit)
    return list(chosen.values())


def relaxation(problem: Problem, demand: Demand, others: Sequence[Demand]) -> tuple[int, Point] | None:
    """The nearest value of a demand's variable that goes with the other demands, and an assignment that has it."""
    if not demand.variable:
        found, _ = problem.solve(others)
        return None if found is None else (-1, found)
    domain = problem.compiled.domains[demand.variable]
    allowed = problem.base.get(demand.variable, domain.all) if demand.variable in problem.base else domain.all
    sets, _ = sets_of(problem.compiled, others, {demand.variable: allowed})
    for place in nearest(domain, sets[demand.variable] & ~demand.mask, demand.mask):
        found, _ = problem.solve([*others, Demand(text="", variable=demand.variable, mask=1 << place)])
        if found is not None:
            return place, found
    return None


def smallest_change(problem: Problem, changeable: Sequence[Demand]) -> tuple[dict[str, int], Point] | None:
    """The fewest demands to give up, then the nearest values instead: variable -> place, and the whole assignment.

    Between changes of as many variables, the one with the least sum of distances in releases is taken.
    """
    for count in range(1, len(changeable) + 1):
        best: _Change | None = None
        for chosen in itertools.combinations(changeable, count):
            fixed = [demand for demand in problem.demands if demand not in chosen]
            if problem.solve(fixed)[0] is not None:
                best = _nearer(problem, chosen, fixed, _Change(), best)
        if best is not None and best.whole is not None:
            return best.places, best.whole
    return None


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Values instead of those asked for, how far they are from them, and the assignment they are part of."""

    places: dict[str, int] = field(default_factory=dict)
    distance: int = 0
    whole: Point | None = None


def _nearer(
    problem: Problem, left: Sequence[Demand], kept: Sequence[Demand], so_far: _Change, best: _Change | None
) -> _Change | None:
    """The best of `best` and all ways to complete `so_far` with values for `left`."""
    if not left:
        whole = problem.solve(kept)[0]
        return best if whole is None else replace(so_far, whole=whole)
    demand = left[0]
    domain = problem.compiled.domains[demand.variable]
    allowed = problem.base.get(demand.variable, domain.all) & ~demand.mask
    for place in nearest(domain, allowed, demand.mask):
        cost = so_far.distance + distance(domain, place, demand.mask)
        if best is not None and cost >= best.distance:
            break
        one = [*kept, Demand(text="", variable=demand.variable, mask=1 << place)]
        if problem.solve(one)[0] is not None:
            change = _Change(places={**so_far.places, demand.variable: place}, distance=cost)
            best = _nearer(problem, left[1:], one, change, best)
    return best


def distance(domain: Domain, place: int, anchor: int) -> int:
    """How many releases lie between; giving a package up is further than any release of it."""
    if place >= len(domain.values):
        return len(domain.values) + 1
    places = list(bits(anchor & domain.some))
    return max(min(places) - place, place - max(places), 0) if places else len(domain.values)
