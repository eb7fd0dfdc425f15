"""`pick`: a partial request to the best full cells, or the smallest set of demands that collide. Pure.

Published cells first, the best proven before the others; then the newest of the whole universe, one for each family of
flash attention. When nothing fits: a minimal conflict, its rules, and for each demand the smallest relaxation.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from knowngood.cell import NO_FLASH_ATTN, Cell
from knowngood.solving.compiled import Point, newest_first
from knowngood.solving.domain import bits
from knowngood.solving.explain import Demand, Problem, distance, minimal_conflict, minimal_rules, relaxation
from knowngood.solving.findings import Finding, of_box, ordered, word
from knowngood.solving.picked import Choice, Clash, Picked
from knowngood.solving.placing import Placed, place
from knowngood.solving.published import Published, packages_of
from knowngood.solving.query import Request
from knowngood.solving.suggesting import given_boxes, universe_allowed
from knowngood.solving.universe import CELL_PACKAGES, Universe

FAMILIES = ("flash-attn", "flash-attn-4")


def pick(universe: Universe, request: Request, published: Published, *, count: int = 3) -> Picked:
    """The answer; raises `UsageError` for names that nobody knows."""
    placed = place(universe, request)
    findings = tuple(ordered(placed.findings))
    lost = [finding for finding in findings if finding.id.removeprefix("unknown:") in placed.universe.compiled.domains]
    if lost:
        size = considered(universe)
        return Picked(choices=(), conflict=(), considered=size, findings=findings, unknown=True)
    problem = problem_of(placed, request, published)
    choices: dict[str, Choice] = {}
    for choice in itertools.chain(_published(placed, problem, published), _newest(placed, problem)):
        choices.setdefault(str(choice.cell), choice)
        if len(choices) == count:
            break
    return Picked(
        choices=tuple(choices.values()),
        conflict=() if choices else tuple(clashes(placed, problem)),
        considered=considered(universe),
        findings=findings,
        uncovered=placed.uncovered,
    )


def considered(universe: Universe) -> int:
    """How many combinations of the cells' axes the facts have."""
    domains = universe.compiled.domains
    flash = 1 + sum(len(domains[name].values) for name in FAMILIES)
    product = flash
    for name in ("gpu", "torch", "transformers", "triton", "python"):
        product *= len(domains[name].values)
    return product


def problem_of(placed: Placed, request: Request, published: Published) -> Problem:
    """The request as a search problem whose best solution is the newest."""
    universe = placed.universe
    compiled = universe.compiled
    asked = {demand.variable for demand in placed.demands}
    base = dict(universe_allowed(universe))
    for name in ("torch", "transformers", "triton"):
        base[name] &= compiled.domains[name].some
    for demand in placed.demands:
        # A pre-release or a withdrawn release is taken when it is asked for.
        if demand.variable in base and demand.mask & base[demand.variable] == 0:
            base[demand.variable] |= demand.mask
    return Problem(
        compiled=compiled,
        demands=(*placed.demands, *placed.bounded),
        base=base,
        # A cell's axis has one value; outside of cells that rule is a warning.
        among=compiled.hard
        | compiled.unknown
        | given_boxes(universe, request.stated)
        | compiled.of_rule.get("one-flash-attention", 0),
        order=_order(universe, asked, published),
    )


def _order(universe: Universe, asked: Container[str], published: Published) -> dict[str, Sequence[int]]:
    """What is preferred, besides the newest: no package that was not asked for, and what published cells have."""
    domains = universe.compiled.domains
    newest: Mapping[str, Sequence[int]] = universe.once(
        "newest", lambda: {name: tuple(newest_first(domain, domain.some)) for name, domain in domains.items()}
    )
    others: Mapping[str, Sequence[int]] = universe.once(
        "others",
        lambda: {
            name: (*bits(domains[name].absent), *newest[name])
            for name in universe.packages
            if name not in CELL_PACKAGES
        },
    )
    order = {name: places for name, places in others.items() if name not in asked}
    # A Python that a base has comes first: only such a cell can be built.
    for name, first in (("python", published.pythons), ("gpu", published.gpus)):
        places = [domains[name].index[value] for value in first if value in domains[name].index]
        order[name] = tuple(dict.fromkeys([*places, *newest[name]]))
    return order


def _published(placed: Placed, problem: Problem, published: Published) -> Iterator[Choice]:
    domains = problem.compiled.domains
    asked = {demand.variable for demand in placed.demands}
    for cell in published.ranked:
        if cell.framework_pin and cell.framework_pin[0] not in asked:
            continue  # whoever wants no framework gets none
        values = packages_of(cell) | {"gpu": cell.gpu, "python": cell.python}
        sets = dict(problem.base)
        try:
            for name, value in values.items():
                sets[name] = domains[name].absent if value == "none" else 1 << domains[name].index[value]
        except KeyError:
            continue
        for name in placed.universe.packages:
            sets[name] = sets[name] if name in values else domains[name].absent
        whole = replace(problem, base=sets).solve(problem.demands)
        if whole is not None:
            tier = str(published.tier(str(cell)))
            yield Choice(cell=cell, tier=tier, published=True, extras={}, findings=_warnings(placed, whole))


def _newest(placed: Placed, problem: Problem) -> Iterator[Choice]:
    """The newest cell with flash-attn 2, with 4, and with neither: whichever fit."""
    for family in (*FAMILIES, None):
        whole = replace(problem, base=_only(problem, family)).solve(problem.demands)
        if whole is not None:
            yield _choice(placed, whole)


def _only(problem: Problem, family: str | None) -> dict[str, int]:
    """A cell's flash-attn axis has one value: the other families are absent."""
    base = dict(problem.base)
    for name in FAMILIES:
        domain = problem.compiled.domains[name]
        base[name] = base[name] & domain.some if name == family else domain.absent
    return base


def _choice(placed: Placed, whole: Point) -> Choice:
    cell = cell_of(placed.universe, whole)
    asked = {demand.variable for demand in placed.demands}
    domains = placed.universe.compiled.domains
    extras = {
        name: domains[name].text(whole[name])
        for name in placed.universe.packages
        if name not in CELL_PACKAGES and (name in asked or whole[name] < len(domains[name].values))
    }
    return Choice(cell=cell, tier="none", published=False, extras=extras, findings=_warnings(placed, whole))


def cell_of(universe: Universe, whole: Mapping[str, int]) -> Cell:
    """The cell that an assignment is."""
    domains = universe.compiled.domains
    values = {name: domains[name].text(whole[name]) for name in (*CELL_PACKAGES, "gpu", "python")}
    flash = next((values[name] for name in FAMILIES if values[name] != "none"), NO_FLASH_ATTN)
    torch = values["torch"].partition("+")[0]
    return _cell(
        gpu=values["gpu"],
        cuda=str(universe.world.book.fact("torch", values["torch"], "cuda")),
        torch=torch,
        transformers=values["transformers"],
        flash_attn=flash,
        triton=values["triton"],
        python=values["python"],
    )


_cell = lru_cache(maxsize=10_000)(Cell)
"""A cell's values are verified when it is made: the same one is made once."""


def _warnings(placed: Placed, whole: Point) -> tuple[Finding, ...]:
    compiled = placed.universe.compiled
    point = {name: whole[name] for name in (*CELL_PACKAGES, "gpu", "python")} | placed.point
    boxes = (compiled.boxes[bit] for bit in bits(compiled.broken(point, compiled.advice)))
    return tuple(ordered([of_box(compiled, box, point, placed.shown, {}) for box in boxes]))


def clashes(placed: Placed, problem: Problem) -> list[Clash]:
    """The minimal conflict, with each demand's rules and smallest relaxation."""
    compiled = problem.compiled
    demands = minimal_conflict(problem)
    boxes = [compiled.boxes[bit] for bit in minimal_rules(problem, demands)]
    point = {name: place_ for name, place_ in placed.point.items() if any(d.variable == name for d in demands)}
    told = [
        {
            "id": box.rule.id,
            "because": word(compiled.world, box.rule.because, box, point, placed.shown),
            "source": [word(compiled.world, text, box, point, {}) for text in box.rule.source],
            "confidence": box.rule.confidence,
        }
        for box in boxes
    ]
    found = []
    for demand in demands:
        about = [rule for rule, box in zip(told, boxes, strict=True) if demand.variable in box.masks]
        found.append(Clash(demand=demand.text, rules=tuple(about or told), relax=_relax(placed, problem, demand)))
    return found


def _relax(placed: Placed, problem: Problem, demand: Demand) -> dict[str, Any] | None:
    """The nearest value with which all other demands can be met, over all families."""
    others = [item for item in problem.demands if item is not demand]
    best: tuple[int, dict[str, Any]] | None = None
    for family in (*FAMILIES, None):
        # Another family counts when its value is nearer.
        found = relaxation(replace(problem, base=_only(problem, family)), demand, others, best and best[0])
        if found is None:
            continue
        place_, whole = found
        domain = problem.compiled.domains[demand.variable]
        told = {
            "change": {demand.variable: domain.text(place_)},
            "cell": str(cell_of(placed.universe, whole)),
        }
        best = distance(domain, place_, demand.mask), told
    return None if best is None else best[1]
