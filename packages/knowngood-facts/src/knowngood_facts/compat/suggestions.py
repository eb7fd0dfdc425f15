"""What to change: the smallest change of pins with which a query can be met. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood_facts.compat.findings import AXES, DemandProblem, Finding, conditions_apply, find_smallest_change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from knowngood_facts.compat.box_search import BoxIndex
    from knowngood_facts.compat.query_placement import QueryPlacement
    from knowngood_facts.compat.universe import Universe

DISPENSABLE = frozenset({"flash-attn", "flash-attn-4", "xformers"})
"""Packages of kernels: without them the same program trains by another attention setting."""


def stated_condition_boxes(universe: Universe, conditions: Mapping[str, str]) -> int:
    """Return the boxes of errors whose conditions of use are all stated to hold, and none of which is excluded."""
    mask = 0
    for bit, box in universe.conditional:
        rule = box.rule
        # The comparison of keys is quick and leaves out most rules: they ask for a condition that was not stated.
        if rule.severity == "error" and rule.given.keys() <= conditions.keys() and conditions_apply(rule, conditions):
            mask |= 1 << bit
    return mask


def check_problem(
    placement: QueryPlacement,
    condition_boxes: int,
    base: Mapping[str, int] | None = None,
    *,
    unknown_is_broken: bool = False,
) -> DemandProblem:
    """Return the demands of a query as a search problem."""
    index = placement.universe.index
    among = index.errors | condition_boxes | (index.unknown_errors if unknown_is_broken else 0)
    demands = (*placement.demands, *placement.implied_demands)
    return DemandProblem(index=index, demands=demands, base=dict(base or {}), among=among)


def find_suggestions(
    placement: QueryPlacement, conditions: Mapping[str, str], findings: Sequence[Finding]
) -> list[dict[str, str]]:
    """Return changes of pins that make a broken query valid, the best first; each is package -> version or `none`.

    The best changes the fewest packages. Of as many it is one that a finding itself names as its fix, then one that
    brings no new warning, then the cheapest (`move_cost`).
    """
    universe = placement.universe
    condition_boxes = stated_condition_boxes(universe, conditions)
    met = [
        bit
        for bit, box in universe.conditional
        if condition_boxes >> bit & 1 and box.rule.forbid and placement.may_lie_in(box)
    ]
    base = suggestible_values(placement) | {"attn": kept_attentions(universe.index, met)}
    problem = check_problem(placement, condition_boxes, base, unknown_is_broken=True)
    pins = [demand for demand in placement.demands if demand.variable and demand.variable not in AXES]
    change = find_smallest_change(problem, pins)
    if change is None or not change.places:
        return []
    quiet = problem.among | new_warning_boxes(placement, conditions)
    ranked = []
    for own, narrowed in (*((0, base) for base in _bases_of_fixes(problem, findings)), (1, base)):
        for loud, among in ((0, quiet), (1, problem.among)):
            better = find_smallest_change(replace(problem, base=narrowed, among=among), pins)
            if better is not None and len(better.places) == len(change.places):
                ranked.append((own, loud, better.cost, better))
    domains = universe.index.domains
    changes = [
        {name: domains[name].text(place) for name, place in best.places.items()}
        for *_, best in sorted(ranked, key=lambda item: item[:3])
    ]
    return [change for place, change in enumerate(changes) if change not in changes[:place]]


def _bases_of_fixes(problem: DemandProblem, findings: Sequence[Finding]) -> Iterator[Mapping[str, int]]:
    """The allowed values, narrowed to each fix that an incident itself names: its ranges of packages with facts."""
    domains = problem.index.domains
    for finding in findings:
        if finding.kind != "incident" or finding.severity != "error":
            continue
        for fix in finding.fix:
            ranges = {name: text for name, text in (fix.get("change") or {}).items() if name in domains}
            if ranges and len(ranges) == len(fix["change"]):
                narrowed = {name: domains[name].mask(str(text)) for name, text in ranges.items()}
                yield {**problem.base, **{name: problem.base.get(name, -1) & mask for name, mask in narrowed.items()}}


def kept_attentions(index: BoxIndex, met: Iterable[int]) -> int:
    """Return the attention settings under which all of these boxes hold.

    A suggestion keeps to them: another attention setting is not a change of packages.
    """
    everything = mask = index.domains["attn"].all
    for bit in met:
        mask &= index.boxes[bit].masks.get("attn", everything)
    return mask or everything


def new_warning_boxes(placement: QueryPlacement, conditions: Mapping[str, str]) -> int:
    """Return the boxes of `possible_warning_boxes` that the query does not meet."""
    mask = possible_warning_boxes(placement.universe, conditions)
    return mask & ~placement.universe.index.find_broken(placement.assignment, mask)


def possible_warning_boxes(universe: Universe, conditions: Mapping[str, str]) -> int:
    """Return the boxes of warnings, and of incidents whose conditions are open, without those of silent faults."""
    index = universe.index
    mask: int = universe.cached(
        "warnings",
        lambda: index.select(
            lambda box: box.rule.severity == "warning" and box.rule.always and not (box.unknown or box.rule.silent)
        ),
    )
    for bit, box in universe.conditional:
        if box.rule.forbid and not box.rule.silent and conditions_apply(box.rule, conditions) is None:
            mask |= 1 << bit
    return mask


def suggestible_values(placement: QueryPlacement) -> dict[str, int]:
    """Return what a suggestion may contain: what `pick` may choose, and the values of the query itself.

    Only a package of kernels can be left out: without torch or the framework itself, the question is another one.
    """
    domains = placement.universe.index.domains
    base = dict(placement.universe.selectable)
    for demand in placement.demands:
        if demand.variable in base:
            kept = base[demand.variable] if demand.variable in DISPENSABLE else domains[demand.variable].some
            base[demand.variable] = base[demand.variable] & kept | demand.mask
    return base
