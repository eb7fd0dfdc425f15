"""The boxes of all rules by bit, ready to be searched.

Every rule is a few boxes (see `knowngood.compat.rule_boxes`); each box has a bit. `BoxIndex.outside[variable][place]`
has the bits of the boxes that this value lies outside of, so the boxes in which an assignment still lies are one AND
for each variable. A rule is broken when all variables of one of its boxes have a value that lies in the box. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from knowngood.compat.rule_boxes import Box, ValueSpace
from knowngood.compat.value_domain import ValueDomain, iterate_bits

ValueSets = Mapping[str, int]
"""Variable -> the mask of the values that it may take."""
Assignment = dict[str, int]
"""Variable -> the place of its value."""

CACHE_LIMIT = 20_000
"""A cache with more entries is emptied, because a batch can be long."""


@dataclass(frozen=True, kw_only=True)
class BoxIndex:
    """The boxes of a value space by bit, with what searches over them keep between two queries."""

    space: ValueSpace
    boxes: Sequence[Box]

    @cached_property
    def domains(self) -> Mapping[str, ValueDomain]:
        """Variable -> the domain of its values."""
        return self.space.domains

    @cached_property
    def outside(self) -> Mapping[str, Sequence[int]]:
        """Variable -> place of a value -> the boxes that the value lies outside of; absence is the last place."""
        tables = {}
        for name, domain in self.domains.items():
            inside = [0] * (len(domain.values) + 1)
            mentioned = 0
            for bit, box in enumerate(self.boxes):
                if name in box.masks:
                    mentioned |= 1 << bit
                    for place in iterate_bits(box.masks[name]):
                        inside[place] |= 1 << bit
            tables[name] = [mentioned & ~mask for mask in inside]
        return tables

    @cached_property
    def _scopes(self) -> Mapping[frozenset[str], int]:
        scopes: dict[frozenset[str], int] = {}
        for bit, box in enumerate(self.boxes):
            scope = frozenset(box.masks)
            scopes[scope] = scopes.get(scope, 0) | 1 << bit
        return scopes

    @cached_property
    def _within(self) -> dict[frozenset[str], int]:
        return {}

    def within(self, variables: frozenset[str]) -> int:
        """Return the boxes all of whose variables are among these."""
        boxes = self._within.get(variables)
        if boxes is None:
            boxes = 0
            for scope, mask in self._scopes.items():
                if scope <= variables:
                    boxes |= mask
            self._within[variables] = boxes
        return boxes

    @cached_property
    def way_cache(self) -> dict[tuple[str, int, int], list[tuple[int, int]]]:
        """Cache of `knowngood.compat.conflicts`: the replacements of a value."""
        return {}

    @cached_property
    def existence_cache(self) -> dict[object, bool]:
        """Cache of `BoxSearch.can_complete`, by what was open."""
        return {}

    @cached_property
    def solution_cache(self) -> dict[object, Assignment | None]:
        """Cache of `BoxSearch.find_best`, by what was open."""
        return {}

    @cached_property
    def conflict_cache(self) -> dict[object, list[int]]:
        """Cache of `knowngood.compat.conflicts`: the rules that exclude some sets of values."""
        return {}

    @cached_property
    def _kinds(self) -> dict[tuple[str, int], list[int]]:
        return {}

    def kinds(self, name: str, allowed: int) -> list[int]:
        """Return the newest place of each group of values that no box tells apart."""
        kinds = self._kinds.get((name, allowed))
        if kinds is None:
            if len(self._kinds) > CACHE_LIMIT:
                self._kinds.clear()
            outside = self.outside[name]
            newest: dict[int, int] = {}
            for place in self.domains[name].newest_first(allowed):
                newest.setdefault(outside[place], place)
            kinds = self._kinds[name, allowed] = list(newest.values())
        return kinds

    @cached_property
    def errors(self) -> int:
        """The boxes of errors that hold under all conditions of use."""
        return self.select(lambda box: box.rule.severity == "error" and box.rule.always and not box.unknown)

    @cached_property
    def unknown_errors(self) -> int:
        """The boxes of errors of which it is not known whether they hold."""
        return self.select(lambda box: box.rule.severity == "error" and bool(box.unknown))

    @cached_property
    def advice(self) -> int:
        """The boxes of warnings and notes that hold under all conditions of use."""
        return self.select(lambda box: box.rule.severity != "error" and not box.rule.given and not box.unknown)

    @cached_property
    def everything(self) -> int:
        """The bits of all boxes together."""
        return (1 << len(self.boxes)) - 1

    @cached_property
    def all_unknown(self) -> int:
        """The boxes of any severity of which it is not known whether they hold."""
        return self.select(lambda box: bool(box.unknown))

    @cached_property
    def boxes_of_rule(self) -> Mapping[str, int]:
        """A rule's id -> the bits of its boxes."""
        boxes: dict[str, int] = {}
        for bit, box in enumerate(self.boxes):
            boxes[box.rule.id] = boxes.get(box.rule.id, 0) | 1 << bit
        return boxes

    @cached_property
    def mentions(self) -> Mapping[str, int]:
        """Variable -> the boxes that have it among their variables."""
        return {name: sum(1 << bit for bit, box in enumerate(self.boxes) if name in box.masks) for name in self.domains}

    def select(self, wanted: Callable[[Box], bool]) -> int:
        """Return the bits of the boxes for which `wanted(box)` is true."""
        return sum(1 << bit for bit, box in enumerate(self.boxes) if wanted(box))

    def split_fixed(self, sets: ValueSets, among: int) -> tuple[Assignment, int]:
        """Return the variables with one value left, and those of `among` in which these values lie."""
        assignment: Assignment = {}
        for name, allowed in sets.items():
            if allowed and allowed & (allowed - 1) == 0:
                assignment[name] = allowed.bit_length() - 1
                among &= ~self.outside[name][assignment[name]]
        return assignment, among

    @cached_property
    def idle_packages(self) -> Mapping[str, int]:
        """Package that no rule requires -> the mask of its absence, with which every rule about it holds."""
        return {
            name: domain.absent
            for name, domain in self.domains.items()
            if domain.absent and self.outside[name][-1] == self.mentions[name]
        }

    def open_variables(self, sets: ValueSets, taken: Container[str], live: int) -> tuple[list[tuple[str, int]], int]:
        """Return the variables still to be decided with their allowed values, and the boxes that still matter."""
        left = []
        for name, domain in self.domains.items():
            if name not in taken:
                allowed = sets.get(name, domain.all)
                if allowed & self.idle_packages.get(name, 0):
                    live &= ~self.mentions[name]
                else:
                    left.append((name, allowed))
        return left, live

    def find_broken(self, assignment: Mapping[str, int], among: int) -> int:
        """Return those of `among` whose variables all have a value in this assignment, and in which it lies."""
        live = among & self.within(frozenset(assignment))
        for name, place in assignment.items():
            live &= ~self.outside[name][place]
            if not live:
                return 0
        return live
