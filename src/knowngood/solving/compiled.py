"""The boxes of a world by bit, ready to be searched.

Every rule is a few boxes (see `solving.world`); each box has a bit. `Compiled.outside[variable][value]` are the bits
of the boxes that this value lies outside of, so the boxes an assignment is still inside of are one AND a variable.
A box whose variables are all assigned and which it is still inside of is a broken rule. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from knowngood.solving.domain import Domain, bits
from knowngood.solving.world import Box, World

Sets = Mapping[str, int]
"""Variable -> the set of its values that may be taken."""
Point = dict[str, int]
"""Variable -> the place of its value."""


KEPT = 20_000
"""Entries after which a cache of a long batch starts anew."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The boxes of a world, by bit."""

    world: World

    @cached_property
    def domains(self) -> Mapping[str, Domain]:
        """Variable -> domain."""
        return self.world.domains

    @cached_property
    def boxes(self) -> Sequence[Box]:
        """Bit -> box."""
        return self.world.boxes

    @cached_property
    def outside(self) -> Mapping[str, Sequence[int]]:
        """Variable -> place of a value -> bits of the boxes it lies outside of."""
        tables = {}
        for name, domain in self.domains.items():
            inside = [0] * (len(domain.values) + 1)
            mentioned = 0
            for bit, box in enumerate(self.boxes):
                if name in box.masks:
                    mentioned |= 1 << bit
                    for place in bits(box.masks[name]):
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
        """The boxes that speak of these variables only."""
        known = self._within.get(variables)
        if known is None:
            known = 0
            for scope, mask in self._scopes.items():
                if scope <= variables:
                    known |= mask
            self._within[variables] = known
        return known

    @cached_property
    def ways(self) -> dict[tuple[str, int, int], list[tuple[int, int]]]:
        """Kept by `knowngood.solving.explain`: what can stand instead of a value."""
        return {}

    @cached_property
    def known(self) -> dict[object, bool]:
        """What searches for existence found, by what was open."""
        return {}

    @cached_property
    def firsts(self) -> dict[object, Point | None]:
        """What searches for the best found, by what was open."""
        return {}

    @cached_property
    def conflicts(self) -> dict[object, list[int]]:
        """Kept by `knowngood.solving.explain`: the rules that exclude some sets."""
        return {}

    @cached_property
    def _kinds(self) -> dict[tuple[str, int], list[int]]:
        return {}

    def kinds(self, name: str, allowed: int) -> list[int]:
        """The newest of each kind of values that no box tells apart."""
        known = self._kinds.get((name, allowed))
        if known is None:
            if len(self._kinds) > KEPT:
                self._kinds.clear()
            outside = self.outside[name]
            found: dict[int, int] = {}
            for place in newest_first(self.domains[name], allowed):
                found.setdefault(outside[place], place)
            known = self._kinds[name, allowed] = list(found.values())
        return known

    @cached_property
    def hard(self) -> int:
        """The boxes that are errors whatever the use."""
        return self.choose(lambda box: box.rule.severity == "error" and box.rule.always and not box.unknown)

    @cached_property
    def unknown(self) -> int:
        """The boxes that stand for something not known (of an error)."""
        return self.choose(lambda box: box.rule.severity == "error" and bool(box.unknown))

    @cached_property
    def advice(self) -> int:
        """The boxes that are no errors, whatever the use."""
        return self.choose(lambda box: box.rule.severity != "error" and not box.rule.given and not box.unknown)

    @cached_property
    def everything(self) -> int:
        """All boxes."""
        return (1 << len(self.boxes)) - 1

    @cached_property
    def unknown_any(self) -> int:
        """The boxes that stand for something not known, of whatever severity."""
        return self.choose(lambda box: bool(box.unknown))

    @cached_property
    def of_rule(self) -> Mapping[str, int]:
        """Rule's id -> its boxes."""
        found: dict[str, int] = {}
        for bit, box in enumerate(self.boxes):
            found[box.rule.id] = found.get(box.rule.id, 0) | 1 << bit
        return found

    @cached_property
    def mentions(self) -> Mapping[str, int]:
        """Variable -> the boxes that speak of it."""
        return {name: sum(1 << bit for bit, box in enumerate(self.boxes) if name in box.masks) for name in self.domains}

    def choose(self, wanted: Callable[[Box], bool]) -> int:
        """The bits of the boxes for which `wanted(box)`."""
        return sum(1 << bit for bit, box in enumerate(self.boxes) if wanted(box))

    def fixed(self, sets: Sets, among: int) -> tuple[Point, int]:
        """The variables with one value left, and the boxes that those values are inside of."""
        point: Point = {}
        for name, allowed in sets.items():
            if allowed and allowed & (allowed - 1) == 0:
                point[name] = allowed.bit_length() - 1
                among &= ~self.outside[name][point[name]]
        return point, among

    @cached_property
    def idle(self) -> Mapping[str, int]:
        """Packages that nothing ever requires, with their absence: it settles every rule about them."""
        return {
            name: domain.absent
            for name, domain in self.domains.items()
            if domain.absent and self.outside[name][-1] == self.mentions[name]
        }

    def open(self, sets: Sets, taken: Container[str], live: int) -> tuple[list[tuple[str, int]], int]:
        """The variables that are to be decided with what they may be, and the boxes still of interest."""
        left = []
        for name, domain in self.domains.items():
            if name not in taken:
                allowed = sets.get(name, domain.all)
                if allowed & self.idle.get(name, 0):
                    live &= ~self.mentions[name]
                else:
                    left.append((name, allowed))
        return left, live

    def broken(self, point: Mapping[str, int], among: int) -> int:
        """The boxes that a (partial) assignment lies in."""
        live = among & self.within(frozenset(point))
        for name, place in point.items():
            live &= ~self.outside[name][place]
            if not live:
                return 0
        return live


def newest_first(domain: Domain, allowed: int) -> list[int]:
    """The places of a set: releases before pre-releases, newest first, absence last."""
    final = list(bits(allowed & domain.some & domain.final))[::-1]
    early = list(bits(allowed & domain.some & ~domain.final))[::-1]
    return [*final, *early, *bits(allowed & domain.absent)]
