"""The search compared with brute force, on random small universes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from knowngood_facts.compat import knowledge
from knowngood_facts.compat.box_index import BoxIndex
from knowngood_facts.compat.demands import (
    Demand,
    DemandProblem,
    find_minimal_conflict,
    find_minimal_rules,
    find_relaxation,
    find_smallest_change,
    move_cost,
)
from knowngood_facts.compat.factbook import Factbook
from knowngood_facts.compat.rule import Rule
from knowngood_facts.compat.rule_boxes import Box, ValueSpace
from knowngood_facts.compat.value_domain import ValueDomain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SIZES = {"a": 3, "b": 4, "c": 3, "d": 2}


@st.composite
def worlds(draw: st.DrawFn) -> BoxIndex:
    domains = {name: ValueDomain(name, map(str, range(size)), optional=name in "cd") for name, size in SIZES.items()}
    boxes = []
    for number in range(draw(st.integers(0, 12))):
        names = draw(st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=3, unique=True))
        masks = {name: draw(st.integers(1, domains[name].all)) for name in names}
        boxes.append(Box(rule=Rule(id=f"r{number // 2}", require={}, because="", source=("s",)), masks=masks))
    return BoxIndex(space=ValueSpace(book=Factbook(tables={}), domains=domains), boxes=tuple(boxes))


@st.composite
def problems(draw: st.DrawFn) -> DemandProblem:
    index = draw(worlds())
    names = draw(st.lists(st.sampled_from(sorted(SIZES)), max_size=4, unique=True))
    demands = []
    for name in names:
        domain = index.domains[name]
        single = 1 << draw(st.integers(0, domain.all.bit_length() - 1))
        mask = single if draw(st.booleans()) else draw(st.integers(1, domain.all))
        demands.append(Demand(text=name, variable=name, mask=mask))
    return DemandProblem(index=index, demands=tuple(demands), base={}, among=index.everything)


def points(index: BoxIndex) -> Iterator[dict[str, int]]:
    ranges = [range(domain.all.bit_length()) for domain in index.domains.values()]
    for places in itertools.product(*ranges):
        yield dict(zip(index.domains, places, strict=True))


def valid(index: BoxIndex, point: Mapping[str, int]) -> bool:
    return not any(all(mask >> point[name] & 1 for name, mask in box.masks.items()) for box in index.boxes)


def meets(point: Mapping[str, int], demands: list[Demand] | tuple[Demand, ...]) -> bool:
    return all(demand.mask >> point[demand.variable] & 1 for demand in demands)


def possible(problem: DemandProblem, demands: list[Demand] | tuple[Demand, ...]) -> bool:
    return any(valid(problem.index, point) and meets(point, demands) for point in points(problem.index))


@given(problems())
@settings(deadline=None, max_examples=150)
def test_search_agrees_with_brute_force(problem: DemandProblem):
    found = problem.solve(problem.demands)
    there = possible(problem, problem.demands)
    assert (found is not None) is there
    if found is not None:
        assert valid(problem.index, found)
        assert meets(found, problem.demands)
    assert problem.possible(problem.demands) is there


@given(problems())
@settings(deadline=None, max_examples=150)
def test_a_minimal_conflict_collides_and_is_minimal(problem: DemandProblem):
    conflict = find_minimal_conflict(problem)
    if possible(problem, problem.demands):
        assert conflict == []
        return
    assert not possible(problem, conflict)
    for demand in conflict:
        assert possible(problem, [item for item in conflict if item is not demand])


@given(problems())
@settings(deadline=None, max_examples=100)
def test_the_rules_of_a_conflict_suffice(problem: DemandProblem):
    conflict = find_minimal_conflict(problem)
    if not conflict:
        return
    told = {box.rule.id for box in find_minimal_rules(problem, conflict)}
    for left_out in [None, *told]:
        boxes = [box for box in problem.index.boxes if box.rule.id in told - {left_out}]
        there = any(
            meets(point, conflict) and not any(all(m >> point[n] & 1 for n, m in box.masks.items()) for box in boxes)
            for point in points(problem.index)
        )
        assert there is (left_out is not None)


@given(problems())
@settings(deadline=None, max_examples=150)
def test_the_smallest_change_is_the_smallest(problem: DemandProblem):
    if possible(problem, problem.demands) or not problem.demands:
        return
    index = problem.index
    by_name = {demand.variable: demand for demand in problem.demands}
    costs = []
    for point in points(index):
        if valid(index, point):
            changed = [name for name, demand in by_name.items() if not demand.mask >> point[name] & 1]
            cost = sum(move_cost(index.domains[name], point[name], by_name[name].mask) for name in changed)
            costs.append((len(changed), cost))
    found = find_smallest_change(problem, problem.demands)
    assert (found is not None) is bool(costs)
    if found is not None:
        assert found.cost == sum(
            move_cost(index.domains[name], at, by_name[name].mask) for name, at in found.places.items()
        )
        assert (len(found.places), found.cost) == min(costs)


def test_an_older_torch_costs_more_than_an_older_package_and_that_more_than_any_newer_release():
    index = knowledge.load_knowledge().universe.index

    def cost(name: str, before: str, after: str) -> int:
        domain = index.domains[name]
        return move_cost(domain, domain.index.get(after, len(domain.values)), domain.mask(f"=={before}"))

    forward = cost("transformers", "4.37.0", "5.23.0")
    back = cost("transformers", "4.48.0", "4.47.1")
    assert cost("transformers", "4.47.1", "4.48.0") < cost("torch", "2.5.1", "2.6.0") < back
    assert forward < back < cost("torch", "2.6.0", "2.5.1")
    assert cost("torch", "2.6.0", "2.5.1") < cost("flash-attn", "2.8.3", "none")
    assert cost("triton", "3.3.0", "3.2.0") == cost("triton", "3.2.0", "3.3.0") == 1  # triton follows torch


@given(problems())
@settings(deadline=None, max_examples=100)
def test_a_relaxation_is_the_nearest_that_opens_a_solution(problem: DemandProblem):
    for demand in problem.demands:
        others = [item for item in problem.demands if item is not demand]
        found = find_relaxation(problem, demand, others)
        domain = problem.index.domains[demand.variable]
        opening = [
            domain.distance(place, demand.mask)
            for place in range(domain.all.bit_length())
            if not demand.mask >> place & 1
            and possible(problem, [*others, Demand(text="", variable=demand.variable, mask=1 << place)])
        ]
        assert (found is None) is (not opening)
        if found is not None:
            assert domain.distance(found[0], demand.mask) == min(opening)
