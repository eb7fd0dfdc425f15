"""What to change: the smallest change of pins with which a query can be met. Pure."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood_facts.compat.demands import Demand, DemandProblem, find_smallest_change
from knowngood_facts.compat.findings import AXES, Finding, conditions_apply
from knowngood_facts.compat.metadata_store import SupposedRelease
from knowngood_facts.compat.value_domain import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from knowngood_facts.compat.box_index import BoxIndex
    from knowngood_facts.compat.query_placement import QueryPlacement
    from knowngood_facts.compat.query_resolution import QueryResolution
    from knowngood_facts.compat.requirement_graph import RequirementGraph
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
    among: int,
    resolved: QueryResolution | None,
    base: Mapping[str, int] | None = None,
) -> DemandProblem:
    """Return the demands of a query as a search problem, with what its packages require if that is known."""
    if resolved is not None:
        return list_problem(placement, resolved, among, base or {})
    demands = (*placement.demands, *placement.implied_demands)
    return DemandProblem(index=placement.universe.index, demands=demands, base=dict(base or {}), among=among)


def list_problem(
    placement: QueryPlacement, resolved: QueryResolution, among: int, base: Mapping[str, int]
) -> DemandProblem:
    """Return the demands of a query on rules and on what packages require as one search problem.

    Args:
        placement: the query.
        resolved: its packages resolved; the search that did so goes on.
        among: the bits of the boxes of rules that count.
        base: what is allowed of packages with facts; all that is known of those that it does not name.
    """
    universe, resolution = placement.universe, resolved.resolution
    index, graph = universe.index, resolution.graph
    named = {demand.variable for demand in placement.demands}
    unruled = frozenset(item.name for item in resolution.wishes.values() if item.name in index.domains) - named
    # Of a package with facts only releases with facts are known to break no rule; another may follow from the query.
    known = {name: set(index.domains[name].values) for name in universe.packages}
    beyond = {name for name, text in resolution.settled.items() if name in known and text not in known[name]}
    beyond |= {name for name in known if not graph.translate(name, index.domains[name].some)}
    beyond |= {name for name in known if _has_supposed_release(graph, name)}
    sets = {name: index.domains[name].all for name in universe.packages if name not in unruled | beyond}
    sets |= {name: mask for name, mask in base.items() if name not in unruled | beyond}
    if "python" not in named:
        pythons = resolution.preferred_pythons if resolved.any_python else [resolution.python.mask]
        sets["python"] = functools.reduce(operator.or_, pythons)
    implied = (
        replace(
            item, mask=graph.translate(item.variable, item.mask) | _values_without_facts(index, graph, item.variable)
        )
        if item.variable in unruled
        else item
        for item in placement.implied_demands
    )
    demands = [*placement.demands, *implied]
    further, replaceable = [], dict[str, int]()
    for wish, package in resolution.wishes.items():
        if wish.variable.endswith("]") or package.is_constraint or package.specifier == NONE:
            further.append(wish)
        elif package.name in unruled or package.name not in index.domains:
            demands.append(Demand(text=package.text, variable=package.name, mask=wish.mask))
            replaceable[package.name] = _replaceable_releases(graph, package.name, base)
    return DemandProblem(
        index=index,
        demands=tuple(demands),
        base=sets,
        among=among,
        resolution=resolution,
        further=tuple(further),
        replaceable=replaceable,
        unruled=unruled,
    )


def with_releases_beyond_facts(problem: DemandProblem) -> DemandProblem:
    """Return a problem in which a package with facts may also be older or newer than all of its releases with facts."""
    resolution, rules = problem.resolution, problem.index.domains
    if resolution is None:
        return problem
    graph = resolution.graph
    beyond: dict[str, int] = {}
    for name in rules.keys() - AXES:
        known = graph.translate(name, rules[name].some)
        if graph.node(name) is not None and known:
            least = known & -known
            beyond[name] = (
                graph.all_values(name) & ~graph.absence(name) & (least - 1 | ~((1 << known.bit_length()) - 1))
            )
    wished = {wish.variable: wish.mask for wish in resolution.wishes}

    def widen(name: str, mask: int) -> int:
        return mask if name in problem.unruled else graph.translate(name, mask) | beyond[name]

    demands = [
        replace(item, mask=widen(item.variable, item.mask) & wished.get(item.variable, -1))
        if item.variable in beyond
        else item
        for item in problem.demands
    ]
    base = {name: widen(name, mask) if name in beyond else mask for name, mask in problem.base.items()}
    return replace(problem, demands=tuple(demands), base=base, unruled=problem.unruled | beyond.keys())


def _values_without_facts(index: BoxIndex, graph: RequirementGraph, name: str) -> int:
    """Return the releases of a package that the rules do not know: nothing that they imply excludes one."""
    return graph.all_values(name) & ~graph.translate(name, index.domains[name].some)


def _has_supposed_release(graph: RequirementGraph, name: str) -> bool:
    """Whether the newest release of a package is one that nobody read."""
    node = graph.node(name)
    return node is not None and isinstance(node.releases[len(node.releases) - 1], SupposedRelease)


def _replaceable_releases(graph: RequirementGraph, name: str, base: Mapping[str, int]) -> int:
    """Return what may replace a release of a package, as values of its metadata; where rules know some, only those."""
    node = graph.node(name)
    if node is None:
        return 0
    withdrawn = sum(
        1 << place
        for place, release in enumerate(node.releases)
        if node.is_withdrawn(place) or isinstance(release, SupposedRelease)
    )
    known = graph.translate(name, base[name]) if name in base else node.domain.some
    return known & node.domain.some & ~node.early & ~withdrawn | (node.domain.absent if name in DISPENSABLE else 0)


def find_suggestions(
    placement: QueryPlacement,
    conditions: Mapping[str, str],
    findings: Sequence[Finding],
    resolved: QueryResolution | None,
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
    among = universe.index.errors | universe.index.unknown_errors | condition_boxes
    problem = check_problem(placement, among, resolved, base)
    implied = placement.implied_demands
    pins = [demand for demand in problem.demands if demand.variable not in AXES and demand not in implied]
    change = find_smallest_change(problem, pins)
    if change is None or not change.places:
        return []
    quiet = problem.among | new_warning_boxes(placement, conditions)
    ranked = []
    for own, narrowed in (*((0, base) for base in _bases_of_fixes(problem, findings)), (1, problem.base)):
        for loud, among in ((0, quiet), (1, problem.among)):
            better = find_smallest_change(replace(problem, base=narrowed, among=among), pins)
            if better is not None and len(better.places) == len(change.places):
                ranked.append((own, loud, better.cost, better))
    changes = [
        {name: problem.domain(name).text(place) for name, place in best.places.items()}
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
