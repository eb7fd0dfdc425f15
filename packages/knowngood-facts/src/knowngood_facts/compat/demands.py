"""Demands of a query: whether they can be met, which of them collide by which rules, and what has to change. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from knowngood_facts.compat.box_index import Assignment, BoxIndex, ValueSets
from knowngood_facts.compat.requirement_graph import PYTHON, Requires
from knowngood_facts.compat.rule_boxes import Box
from knowngood_facts.compat.search import Clash, ClashSource, Search, SearchFailure, Wish
from knowngood_facts.compat.value_domain import ValueDomain, iterate_bits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from knowngood_facts.compat.findings import Finding
    from knowngood_facts.compat.requirement_graph import RequirementResolution


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A demand of a query: the values that one variable may have, and the text by which the user knows it."""

    text: str
    variable: str
    mask: int
    owner: str = ""
    """The package from which this follows (a wheel compiled against a torch); the demand is given up with it."""
    rebuild: bool = False
    """The demand is of one build, and another build of the same release may do."""
    reason: Finding | None = None
    """Why the other values are refused, where no rule says it."""


@dataclass(frozen=True, kw_only=True)
class DemandProblem:
    """Demands to be met without breaking a rule of `among`; the values of `base` are allowed besides them."""

    index: BoxIndex
    demands: tuple[Demand, ...]
    base: ValueSets
    among: int
    order: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Variable -> places, the preferred first; for other variables the newest first and absence last."""
    first: tuple[str, ...] = ()
    """The variables that get the best values before the others."""

    resolution: RequirementResolution | None = None
    """The list of the query resolved, whose search has what packages require too; `None`: only the rules count."""
    further: tuple[Wish, ...] = ()
    """What is wished besides, and never given up: extras and constraints."""
    replaceable: Mapping[str, int] = field(default_factory=dict)
    """What may replace the values of a demand, for packages that `base` does not have."""
    unruled: frozenset[str] = frozenset()
    """The packages with facts of which the query names a release without; their values are those of the metadata."""

    @property
    def search(self) -> Search:
        """The search among the rules that count."""
        return self.index.search(self.among) if self.resolution is None else self.resolution.search

    def domain(self, variable: str) -> ValueDomain:
        """Return the values of a variable in the words of the rules; of another package, those of the metadata."""
        if variable in self.index.domains and variable not in self.unruled:
            return self.index.domains[variable]
        domain = self.resolution.graph.domain(variable) if self.resolution else None
        assert domain is not None  # noqa: S101 - a demand is of a package that rules or metadata know
        return domain

    def wish(self, variable: str, mask: int) -> Wish:
        """Return the wish that a variable has one of some values of its domain."""
        if self.resolution is not None and variable in self.index.domains and variable not in self.unruled:
            mask = self.resolution.graph.translate(variable, mask)
        return Wish(variable, mask)

    @cached_property
    def base_wishes(self) -> list[Wish]:
        """What is allowed besides the demands, and that the rules hold."""
        wishes = [*self.further, *(self.wish(name, mask) for name, mask in self.base.items())]
        if self.resolution is not None:
            graph, errors = self.resolution.graph, self.among & self.index.errors
            wishes += [graph.rules_wish(self.search, among) for among in (errors, self.among & ~errors)]
        return wishes

    def wishes(self, demands: Iterable[Demand]) -> list[Wish]:
        """Return the wishes of demands."""
        return [self.wish(demand.variable, demand.mask) for demand in demands]

    def allowed(self, variable: str, demands: Iterable[Demand]) -> int:
        """Return the values that `base` and demands leave of a variable."""
        mask = self.base.get(variable, self.domain(variable).all)
        for demand in demands:
            if demand.variable == variable:
                mask &= demand.mask
        return mask

    def attempt(
        self, wishes: Sequence[Wish], prefer: Mapping[str, Sequence[int]] | None = None
    ) -> Mapping[str, int] | SearchFailure:
        """Return the bits of values that fulfil wishes besides the base, or why there are none.

        `prefer` is as in `Search.solve`.
        """
        pythons = {} if self.resolution is None else {PYTHON: self.resolution.preferred_pythons}
        return self.search.solve([*self.base_wishes, *wishes], {**(prefer or {}), **pythons})

    def possible(self, demands: Iterable[Demand]) -> bool:
        """Whether these demands can be met together."""
        return not isinstance(self.attempt(self.wishes(demands)), SearchFailure)

    def solve(self, demands: Iterable[Demand]) -> Assignment | None:
        """Return the best assignment that meets these demands; `None` when there is none.

        Best is by the order of the variables (`first`, then the domains'), then by `order`.
        """
        domains = self.index.domains
        prefer = {
            name: [1 << place for place in self.order.get(name) or domains[name].newest_first(domains[name].all)]
            for name in dict.fromkeys((*self.first, *domains))
        }
        result = self.search.solve([*self.base_wishes, *self.wishes(demands)], prefer)
        if isinstance(result, SearchFailure):
            return None
        absent = {name: len(domain.values) for name, domain in domains.items()}
        return absent | {name: bit.bit_length() - 1 for name, bit in result.items()}


def find_minimal_conflict(problem: DemandProblem) -> list[Demand]:
    """Return demands that cannot be met together, none of which can be left out; empty when all can be met."""
    by_wish = {problem.wish(demand.variable, demand.mask): demand for demand in reversed(problem.demands)}
    # A demand of all that may be chosen in any case is in no conflict.
    wishes = [wish for wish in reversed(by_wish) if wish not in problem.base_wishes]
    failure = problem.search.find_minimal_failure(wishes, problem.base_wishes)
    return [by_wish[wish] for wish in failure.wishes if wish in wishes] if failure else []


def find_minimal_rules(problem: DemandProblem, demands: Sequence[Demand]) -> list[Box]:
    """Return one box for each rule of a minimal set of causes that together exclude these demands."""
    return newest_boxes(find_minimal_causes(problem, demands))


def newest_boxes(causes: Iterable[Clash]) -> list[Box]:
    """Return one box for each rule among causes."""
    boxes = [clash.cause for clash in causes if isinstance(clash.cause, Box)]
    chosen: dict[str, Box] = {}
    # Of the boxes of one rule, the one about the newest releases is the most useful to a user.
    for box in sorted(boxes, key=lambda box: -sum(mask.bit_length() for mask in box.masks.values())):
        chosen.setdefault(box.rule.id, box)
    return [chosen[name] for name in dict.fromkeys(box.rule.id for box in boxes)]


def find_minimal_causes(problem: DemandProblem, demands: Sequence[Demand]) -> list[Clash]:
    """Return the clashes of a minimal set of causes that together exclude these demands; none when nothing does.

    A cause is a rule, or what one package requires of another. The earlier rules are left out first.
    """
    wishes = [*problem.base_wishes, *problem.wishes(demands)]
    failure = problem.search.solve(wishes)
    if not isinstance(failure, SearchFailure):
        return []
    bits = {id(box): bit for bit, box in enumerate(problem.index.boxes)}
    clashes = sorted(failure.clashes, key=lambda clash: bits.get(id(clash.cause), len(bits)))
    about = itertools.chain.from_iterable(problem.search.about.values())
    of_rules = list({id(clash): clash for clash in about if isinstance(clash.cause, Box)}.values())
    for name in dict.fromkeys(map(_cause_name, clashes)):
        kept = [clash for clash in clashes if _cause_name(clash) != name]
        names = set(map(_cause_name, kept))
        # Another clash of a rule that is kept may do what this cause did.
        kept += [clash for clash in of_rules if clash not in kept and _cause_name(clash) in names]
        search = Search(source=_Closed(problem.search.source))
        for clash in kept:
            search.add(Clash(clash.sets, clash))
        fewer = search.solve(wishes)
        if isinstance(fewer, SearchFailure):
            needed = {id(clash.cause) for clash in fewer.clashes}
            clashes = [clash for clash in kept if id(clash) in needed]
    return clashes


def _cause_name(clash: Clash) -> object:
    cause = clash.cause
    if isinstance(cause, Box):
        return cause.rule.id
    return (cause.package, cause.dependency.name) if isinstance(cause, Requires) else cause


@dataclass(frozen=True)
class _Closed:
    """A source of clashes that gives no further ones."""

    source: ClashSource

    def all_values(self, variable: str) -> int:
        return self.source.all_values(variable)

    def absence(self, variable: str) -> int:
        return self.source.absence(variable)

    def expand(self, variable: str, value: int) -> Sequence[Clash]:
        del variable, value
        return ()

    def prefer(self, variable: str, mask: int, values: Mapping[str, int]) -> int:
        return self.source.prefer(variable, mask, values)


def find_relaxation(
    problem: DemandProblem, demand: Demand, others: Sequence[Demand], within: int | None = None
) -> tuple[int, Assignment] | None:
    """Return the nearest value of a demand's variable that goes with the other demands, and an assignment with it.

    Only values at a distance of less than `within` releases count. `None` when there is no such value.
    """
    domain = problem.domain(demand.variable)
    if not problem.possible(others):
        return None
    allowed = problem.allowed(demand.variable, others)
    excluded = 0
    for place in domain.nearest_places(allowed & ~demand.mask, demand.mask):
        wish = problem.wish(demand.variable, 1 << place)
        if excluded & wish.mask or (within is not None and domain.distance(place, demand.mask) >= within):
            continue
        result = problem.attempt([*problem.wishes(others), wish])
        if isinstance(result, SearchFailure):
            excluded |= result.excluded.get(wish, 0)
            continue
        assignment = problem.solve([*others, Demand(text="", variable=demand.variable, mask=1 << place)])
        return None if assignment is None else (place, assignment)
    return None


@dataclass(frozen=True, kw_only=True)
class PinChange:
    """New places of variables, and what they cost in all; see `move_cost`."""

    places: Mapping[str, int]
    cost: int


def find_smallest_change(problem: DemandProblem, changeable: Sequence[Demand]) -> PinChange | None:
    """Return the new places of the fewest variables that have to change; `None` when no change helps.

    Of the changes of as many variables, the one with the least sum of costs is taken.
    """
    best: PinChange | None = None
    by_name = {demand.variable: demand for demand in changeable}
    tried: set[frozenset[str]] = set()
    queue: list[tuple[str, ...]] = [()]
    while queue:
        names = queue.pop(0)
        if best is not None and len(names) > len(best.places):
            break
        if frozenset(names) in tried:
            continue
        tried.add(frozenset(names))
        loose = [by_name[name] for name in names]
        kept = [item for item in problem.demands if item not in loose and item.owner not in names]
        allowed = {item.variable: _replacements(problem, item) for item in loose}
        if not all(problem.wish(name, mask).mask for name, mask in allowed.items()):
            continue  # there is nothing to change it to
        result = _attempt_with(problem, kept, allowed)
        if isinstance(result, SearchFailure):
            # What makes another demand collide as well has to change too.
            needed = [item for item in kept if problem.wish(item.variable, item.mask) in result.excluded]
            more = dict.fromkeys(item.owner or item.variable for item in needed)
            queue += [(*names, name) for name in more if name in by_name and name not in names]
        elif names:
            best = _cheapest_change(problem, kept, loose, best)
        else:
            return PinChange(places={}, cost=0)
    return best


def _replacements(problem: DemandProblem, demand: Demand) -> int:
    """The values that may replace those of a demand."""
    everything = problem.replaceable.get(demand.variable)
    if everything is None:
        everything = problem.base.get(demand.variable, problem.domain(demand.variable).all)
    return everything if demand.rebuild else everything & ~demand.mask


def _attempt_with(
    problem: DemandProblem,
    kept: Iterable[Demand],
    values: ValueSets,
    prefer: Mapping[str, Sequence[int]] | None = None,
) -> Mapping[str, int] | SearchFailure:
    wishes = [*problem.wishes(kept), *(problem.wish(name, mask) for name, mask in values.items())]
    return problem.attempt(wishes, prefer)


def _cheapest_change(
    problem: DemandProblem, kept: Sequence[Demand], loose: Sequence[Demand], best: PinChange | None
) -> PinChange | None:
    """Return the cheapest change of these demands if it is cheaper than `best`, else that.

    The combinations of new values are tried in the order of their costs. A failure says which values of which of the
    variables it shuts out, so a combination that has only such values is never tried.
    """
    ways = {item.variable: _ways(problem, item) for item in loose}
    if not all(ways.values()):
        return best
    best = _first_change(problem, kept, ways, best)
    start = (0,) * len(loose)
    queue = [(sum(way[0][0] for way in ways.values()), start)]
    reached = {start}
    for _ in range(_TRIALS if len(loose) > 1 else 0):
        if not queue:
            break
        cost, at = heapq.heappop(queue)
        if best is not None and cost >= best.cost:
            break
        places = {name: way[index][1] for (name, way), index in zip(ways.items(), at, strict=True)}
        result = _attempt_with(problem, kept, {name: 1 << place for name, place in places.items()})
        if not isinstance(result, SearchFailure):
            return PinChange(places=places, cost=cost)
        for position, (name, way) in enumerate(ways.items()):
            index = _next_way(problem, name, way[at[position] :], result)
            further = (*at[:position], at[position] + index, *at[position + 1 :])
            if index and further not in reached:
                reached.add(further)
                heapq.heappush(queue, (cost - way[at[position]][0] + way[further[position]][0], further))
    return best


def _first_change(
    problem: DemandProblem, kept: Sequence[Demand], ways: Mapping[str, list[tuple[int, int]]], best: PinChange | None
) -> PinChange | None:
    """Return the change that is cheapest for the first variable, then for the next, if it is cheaper than `best`."""
    allowed = {name: sum(1 << place for _, place in way) for name, way in ways.items()}
    prefer = {name: [problem.wish(name, 1 << place).mask for _, place in way] for name, way in ways.items()}
    result = _attempt_with(problem, kept, allowed, prefer)
    if isinstance(result, SearchFailure):
        return best
    places, cost = {}, 0
    for name, way in ways.items():
        bit = result.get(name, problem.wish(name, problem.domain(name).absent).mask)
        spent, places[name] = way[prefer[name].index(bit)]
        cost += spent
    return PinChange(places=places, cost=cost) if best is None or cost < best.cost else best


def _next_way(problem: DemandProblem, name: str, ways: Sequence[tuple[int, int]], failure: SearchFailure) -> int:
    """Return how far the next of the ways is that a failure of the first does not shut out; 0 when there is none."""
    excluded = failure.excluded.get(problem.wish(name, 1 << ways[0][1]))
    if excluded is None:
        return 0  # whatever its value is, the others collide
    further = (at for at, (_, place) in enumerate(ways) if at and not excluded & problem.wish(name, 1 << place).mask)
    return next(further, 0)


_TRIALS = 40
"""So many combinations of new values are tried at most, beside the one that is best for the first variable."""

_TORCH, _BACK, _TORCH_BACK, _LEFT_OUT = 100, 1_000, 10_000, 100_000
"""What another torch, an older release, an older torch, and a package that is left out cost besides the distance."""

_FOLLOWERS = frozenset({"triton"})
"""Packages that only follow another one (triton follows torch's pin): to move them back costs nothing more."""


def move_cost(domain: ValueDomain, place: int, anchor: int) -> int:
    """Return what it costs to move a package from the values of `anchor` to a place.

    The cost is the distance in releases. Moving torch costs more than that, moving another package back more than
    moving any forward, moving torch back still more, and leaving a package out the most.
    """
    distance = domain.distance(place, anchor)
    if place >= len(domain.values):
        return distance + _LEFT_OUT
    anchors = anchor & domain.some
    is_torch = domain.name == "torch"
    if place >= (anchors & -anchors).bit_length() - 1 or domain.name in _FOLLOWERS:
        return distance + _TORCH * is_torch
    return distance + (_TORCH_BACK if is_torch else _BACK)


def _ways(problem: DemandProblem, demand: Demand) -> list[tuple[int, int]]:
    """Costs and places of what may replace the values of a demand, cheapest first, of as cheap ones the newest."""
    key = (demand.variable, demand.variable in problem.unruled, _replacements(problem, demand), demand.mask)
    ways = problem.index.ways.get(key)
    if ways is None:
        domain = problem.domain(demand.variable)
        costs = sorted((move_cost(domain, place, demand.mask), -place) for place in iterate_bits(key[2]))
        ways = problem.index.ways[key] = [(cost, -place) for cost, place in costs]
    return ways
