"""The boxes of rules by bit: which of them an assignment breaks, and the search among some of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from knowngood_facts.compat.search import Clash, Search
from knowngood_facts.compat.value_domain import ValueDomain, iterate_bits

if TYPE_CHECKING:
    from knowngood_facts.compat.rule_boxes import Box, ValueSpace

ValueSets = Mapping[str, int]
"""Variable -> the mask of the values that it may take."""
Assignment = dict[str, int]
"""Variable -> the place of its value."""


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
    def searches(self) -> dict[int, Search]:
        """Boxes -> the search among them, of the present question."""
        return {}

    def search(self, among: int) -> Search:
        """Return the search among some boxes, which keeps what it learned."""
        search = self.searches.get(among)
        if search is None:
            if among not in self._begun:
                self._begun[among] = Search(source=self)
                for bit in iterate_bits(among):
                    self._begun[among].add(Clash(dict(self.boxes[bit].masks), self.boxes[bit]))
                self._begun[among].prepare()
            search = self.searches[among] = self._begun[among].copy()
        return search

    @cached_property
    def _begun(self) -> dict[int, Search]:
        """Boxes -> the search among them that was asked nothing yet."""
        return {}

    def all_values(self, variable: str) -> int:
        """Return all values of a variable."""
        return self.domains[variable].all

    def absence(self, variable: str) -> int:
        """Return the bit of a variable's absence; 0 for an axis."""
        return self.domains[variable].absent

    def expand(self, variable: str, value: int) -> Sequence[Clash]:
        """Return nothing: all clashes of rules are known from the start."""
        del variable, value
        return ()

    def prefer(self, variable: str, mask: int, values: Mapping[str, int]) -> int:
        """Return the bit of the newest release of a mask, of a final one if there is one."""
        del values
        final = mask & self.domains[variable].final
        return 1 << ((final or mask).bit_length() - 1)

    @cached_property
    def ways(self) -> dict[tuple[str, bool, int, int], list[tuple[int, int]]]:
        """Cache of `compat.demands`: the replacements of a value, with their costs."""
        return {}

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

    def find_broken(self, assignment: Mapping[str, int], among: int) -> int:
        """Return those of `among` whose variables all have a value in this assignment, and in which it lies."""
        live = among & self.within(frozenset(assignment))
        for name, place in assignment.items():
            live &= ~self.outside[name][place]
            if not live:
                return 0
        return live
