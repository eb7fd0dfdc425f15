"""What to change: the smallest change of pins with which a request can be met. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from knowngood.solving.compiled import Compiled
from knowngood.solving.explain import Problem, smallest_change
from knowngood.solving.findings import AXES, applies
from knowngood.solving.placing import Placed, allowed
from knowngood.solving.published import Published, cell_with
from knowngood.solving.universe import Universe

DISPENSABLE = frozenset({"flash-attn", "flash-attn-4", "xformers"})
"""Packages of kernels, without which the same program trains by another attention setting."""


def given_boxes(universe: Universe, used: Mapping[str, str]) -> int:
    """The boxes of errors whose conditions of use were stated to hold, and not excluded."""
    mask = 0
    for bit, box in universe.conditional:
        # Most ask for what was not stated, which is seen at a glance.
        if box.rule.severity == "error" and box.rule.given.keys() <= used.keys() and applies(box.rule, used):
            mask |= 1 << bit
    return mask


def problem_of(placed: Placed, given: int, base: Mapping[str, int] | None = None, *, sure: bool = False) -> Problem:
    """The demands as a search problem; `sure` takes what is not known for broken."""
    compiled = placed.universe.compiled
    among = compiled.hard | given | (compiled.unknown if sure else 0)
    return Problem(compiled=compiled, demands=(*placed.demands, *placed.bounded), base=dict(base or {}), among=among)


def suggestion(
    placed: Placed, used: Mapping[str, str], published: Published
) -> tuple[dict[str, str] | None, str | None]:
    """The smallest change of pins that becomes valid, and the published cell that has it."""
    universe = placed.universe
    given = given_boxes(universe, used)
    met = [bit for bit, box in universe.conditional if given >> bit & 1 and placed.lies_in(box)]
    base = suggestible(placed) | {"attn": kept_attentions(universe.compiled, met)}
    problem = problem_of(placed, given, base, sure=True)
    pins = [demand for demand in placed.demands if demand.variable and demand.variable not in AXES]
    changed = smallest_change(problem, pins)
    if not changed:
        return None, None
    # Of changes of as many packages, one without a new warning.
    calm = smallest_change(replace(problem, among=problem.among | warnings(placed, used)), pins)
    if calm and len(calm) == len(changed):
        changed = calm
    domains = universe.compiled.domains
    changes = {name: domains[name].text(place_) for name, place_ in changed.items()}
    return changes, cell_with(published, placed, {**placed.point, **changed})


def kept_attentions(compiled: Compiled, met: Iterable[int]) -> int:
    """The attention settings under which all of these boxes hold: another attention is no change of packages."""
    everything = mask = compiled.domains["attn"].all
    for bit in met:
        mask &= compiled.boxes[bit].masks.get("attn", everything)
    return mask or everything


def warnings(placed: Placed, used: Mapping[str, str]) -> int:
    """The boxes of warnings, and of incidents whose conditions are open, but for those that were met as asked."""
    universe = placed.universe
    compiled = universe.compiled
    mask: int = universe.once(
        "warnings",
        lambda: compiled.choose(
            lambda box: box.rule.severity == "warning" and box.rule.always and not (box.unknown or box.rule.silent)
        ),
    )
    for bit, box in universe.conditional:
        if box.rule.forbid and not box.rule.silent and applies(box.rule, used) is None:
            mask |= 1 << bit
    return mask & ~compiled.broken(placed.point, mask)


def suggestible(placed: Placed) -> dict[str, int]:
    """What may be suggested: what `pick` may choose, and what was asked for as it is.

    Only a kernel package can be left out: without torch or the framework itself the question is another one.
    """
    domains = placed.universe.compiled.domains
    base = dict(universe_allowed(placed.universe))
    for demand in placed.demands:
        if demand.variable in base:
            kept = base[demand.variable] if demand.variable in DISPENSABLE else domains[demand.variable].some
            base[demand.variable] = base[demand.variable] & kept | demand.mask
    return base


def universe_allowed(universe: Universe) -> dict[str, int]:
    """`placing.allowed`, once a universe."""
    found: dict[str, int] = universe.once("allowed", lambda: allowed(universe))
    return found
