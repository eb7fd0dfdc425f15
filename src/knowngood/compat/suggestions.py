"""What to change: the smallest change of pins with which a query can be met. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from knowngood.compat.box_index import BoxIndex
from knowngood.compat.conflicts import DemandProblem, find_smallest_change
from knowngood.compat.findings import AXES, conditions_apply
from knowngood.compat.matrix_cells import PublishedCells, find_published_cell
from knowngood.compat.query_placement import QueryPlacement
from knowngood.compat.universe import Universe

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


def find_suggestion(
    placement: QueryPlacement, conditions: Mapping[str, str], published: PublishedCells
) -> tuple[dict[str, str] | None, str | None]:
    """Return the smallest change of pins that makes a broken query valid, and the published cell that has it.

    The change is package -> version, or `none` for a package to leave out.
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
    if not change:
        return None, None
    # Of two changes of as many packages, the one that brings no new warning is better.
    without_warning = find_smallest_change(
        replace(problem, among=problem.among | new_warning_boxes(placement, conditions)), pins
    )
    if without_warning and len(without_warning) == len(change):
        change = without_warning
    domains = universe.index.domains
    changes = {name: domains[name].text(place) for name, place in change.items()}
    return changes, find_published_cell(published, placement, {**placement.assignment, **change})


def kept_attentions(index: BoxIndex, met: Iterable[int]) -> int:
    """Return the attention settings under which all of these boxes hold.

    A suggestion keeps to them: another attention setting is not a change of packages.
    """
    everything = mask = index.domains["attn"].all
    for bit in met:
        mask &= index.boxes[bit].masks.get("attn", everything)
    return mask or everything


def new_warning_boxes(placement: QueryPlacement, conditions: Mapping[str, str]) -> int:
    """Return the boxes of warnings, and of incidents whose conditions are not decided, that the query does not meet."""
    universe = placement.universe
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
    return mask & ~index.find_broken(placement.assignment, mask)


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
