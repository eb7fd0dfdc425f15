"""The smallest change of pins with which a list resolves and breaks no rule. Pure.

The rules that can be broken are given to the search as clashes, so that it steps over releases that a rule forbids. A
set of pins that may change is tried only after all that are smaller. When it does not suffice, the failure names the
other pins of which one has to change as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.compat.findings import AXES, move_cost
from knowngood.compat.requirement_solver import Clash, SearchFailure, SearchLimitError, Wish
from knowngood.compat.suggestions import DISPENSABLE
from knowngood.compat.value_domain import NONE, iterate_bits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from knowngood.compat.query_placement import QueryPlacement
    from knowngood.compat.requirement_graph import RequirementResolution

_TRIALS = 60
"""So many sets of pins are tried at most."""


@dataclass(frozen=True, kw_only=True)
class PinMove:
    """Another release for each of a few packages, and what that costs in all; see `move_cost`."""

    cost: int
    changes: Mapping[str, str]
    """Package -> release, or `none`."""


def find_resolving_moves(
    resolution: RequirementResolution, placement: QueryPlacement, boxes: int, kept: Collection[str] = ()
) -> list[PinMove]:
    """Return the changes of the fewest packages with which a list resolves, the cheapest first.

    Args:
        resolution: the list, which cannot be resolved or breaks a rule.
        placement: the query that has the list.
        boxes: the bits of the boxes of rules that count.
        kept: the packages that must not change.
    """
    universe = placement.universe
    selectable = {name: universe.index.domains[name].texts(mask) for name, mask in universe.selectable.items()}
    rules = _add_rules(resolution, placement, boxes)
    by_package: dict[str, list[Wish]] = {}
    for wish, package in resolution.wishes.items():
        by_package.setdefault(package.name, []).append(wish)
    fixed = {package.name for package in resolution.wishes.values() if package.specifier == NONE} | set(kept)
    tried: set[frozenset[str]] = set()
    queue: list[tuple[str, ...]] = [()]
    moves: list[PinMove] = []
    while queue and len(tried) < _TRIALS:
        loose = queue.pop(0)
        if moves and len(loose) > len(moves[0].changes):
            break
        if frozenset(loose) in tried:
            continue
        tried.add(frozenset(loose))
        try:
            result = _try_without(resolution, rules, by_package, loose, selectable)
        except SearchLimitError:
            continue
        if isinstance(result, PinMove):
            moves.append(result)
        else:
            queue += [(*loose, name) for name in result if name not in fixed.union(loose)]
    return sorted(moves, key=lambda move: move.cost)


def _add_rules(resolution: RequirementResolution, placement: QueryPlacement, boxes: int) -> Wish:
    """Give the search the rules that can be broken by releases of the list, and return the wish that they hold."""
    index, store = placement.universe.index, resolution.graph.store
    stated = {name: place for name, place in placement.assignment.items() if name in AXES}
    names = {package.name for package in resolution.wishes.values()} | resolution.settled.keys()
    key = f"[{boxes} {sorted(stated.items())} {sorted(names)}]"
    if key not in resolution.search.about:
        resolution.search.about[key] = []
        for bit in iterate_bits(boxes):
            masks = index.boxes[bit].masks
            axes = masks.keys() & AXES
            if not axes <= stated.keys() or any(not masks[name] >> stated[name] & 1 for name in axes):
                continue
            if not masks.keys() - AXES <= names:
                continue
            sets = {key: 1}
            for name in masks.keys() - AXES:
                package = store.find_package(name)
                if package is None:
                    break
                own = package.domain
                sets[name] = _translate(index.domains[name].texts(masks[name]), own.index, own.absent)
            else:
                clash = Clash(sets, index.boxes[bit].rule)
                for name in sets:
                    resolution.search.about.setdefault(name, []).append(clash)
    return Wish(key, 1)


def _translate(texts: Sequence[str], places: Mapping[str, int], absent: int) -> int:
    mask = 0
    for text in texts:
        if text == NONE:
            mask |= absent
        elif text in places:
            mask |= 1 << places[text]
    return mask


def _try_without(
    resolution: RequirementResolution,
    rules: Wish,
    by_package: Mapping[str, Sequence[Wish]],
    loose: tuple[str, ...],
    selectable: Mapping[str, Sequence[str]],
) -> PinMove | list[str]:
    """Let some packages change: return their new releases, or the packages of which another has to change as well."""
    graph = resolution.graph
    wishes, prefer, anchors = [rules], {}, {}
    for name, own in by_package.items():
        if name not in loose:
            wishes += own
            continue
        node = graph.node(name)
        assert node is not None  # noqa: S101 - only packages with metadata are wishes
        anchor = anchors[name] = own[0].mask
        allowed = node.domain.some & ~anchor & ~node.early
        allowed &= ~sum(1 << place for place in range(len(node.releases)) if node.is_withdrawn(place))
        if name in selectable:  # the rules know of no others
            allowed &= _translate(selectable[name], node.domain.index, 0)
        if name in DISPENSABLE:
            allowed |= node.domain.absent
        if not allowed:
            return []
        wishes += [Wish(name, allowed), *own[1:]]
        costs = sorted((move_cost(node.domain, place, anchor), -place) for place in iterate_bits(allowed))
        prefer[name] = [1 << -place for _, place in costs]
    result = resolution.search.solve(wishes, prefer)
    if isinstance(result, SearchFailure):
        return list(dict.fromkeys(resolution.wishes[wish].name for wish in result.wishes if wish in resolution.wishes))
    cost, changes = 0, {}
    for name, anchor in anchors.items():
        domain = graph.node(name).domain  # type: ignore[union-attr]
        place = result[name].bit_length() - 1 if name in result else len(domain.values)
        cost += move_cost(domain, place, anchor)
        changes[name] = domain.text(place)
    return PinMove(cost=cost, changes=changes)
