"""Search over assignments: is there one without a broken rule, which is best, and if none, which demands collide.

Every rule is a few boxes (see `knowngood.world`); each box has a bit. `Compiled.outside[variable][value]` are the bits
of the boxes that this value lies outside of, so the boxes an assignment is still inside of are one AND a variable.
A box whose variables are all assigned and which it is still inside of is a broken rule. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from knowngood.domain import Domain, bits
from knowngood.world import Box, World

Sets = Mapping[str, int]
"""Variable -> the set of its values that may be taken."""
Point = dict[str, int]
"""Variable -> the place of its value."""


_KEPT = 20_000
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
    def variables(self) -> tuple[str, ...]:
        """All variables, in the order in which a search assigns them."""
        return tuple(self.domains)

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
    def known(self) -> dict[object, bool]:
        """What searches for existence found, by what was open."""
        return {}

    @cached_property
    def _kinds(self) -> dict[tuple[str, int], list[int]]:
        return {}

    def kinds(self, name: str, allowed: int) -> list[int]:
        """The newest of each kind of values that no box tells apart."""
        known = self._kinds.get((name, allowed))
        if known is None:
            if len(self._kinds) > _KEPT:
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
        return self.choose(lambda box: box.rule.severity == "error" and not box.rule.given and not box.unknown)

    @cached_property
    def unknown(self) -> int:
        """The boxes that stand for something not known (of an error)."""
        return self.choose(lambda box: box.rule.severity == "error" and bool(box.unknown))

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

    def broken(self, point: Mapping[str, int], among: int) -> int:
        """The boxes that a (partial) assignment lies in."""
        live = among & self.within(frozenset(point))
        for name, place in point.items():
            live &= ~self.outside[name][place]
            if not live:
                return 0
        return live


@dataclass(kw_only=True)
class Search:
    """One search; `used` collects boxes that excluded something, so a proof when nothing is found."""

    compiled: Compiled
    among: int
    """The boxes that count."""
    order: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Variable -> places, the preferred first; without it the newest first, absence last."""
    used: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """How often a variable was left without a value."""

    def first(self, sets: Sets) -> Point | None:
        """The first assignment, in the order of the variables and of `order`, that breaks no rule; or `None`.

        One variable after the other gets the first value with which the others can still be completed, so nothing is
        ever taken back.
        """
        chosen = dict(sets)
        if not self.exists(chosen):
            return None
        point: Point = {}
        for name, domain in self.compiled.domains.items():
            for place in self._preference(name, chosen.get(name, domain.all)):
                chosen[name] = 1 << place
                if self.exists(chosen):
                    point[name] = place
                    break
        return point

    def _preference(self, name: str, allowed: int) -> Sequence[int]:
        """The values worth a try: of each kind the first."""
        order = self.order.get(name)
        if order is None:
            return self.compiled.kinds(name, allowed)
        outside = self.compiled.outside[name]
        found: dict[int, int] = {}
        for place in order:
            if allowed >> place & 1:
                found.setdefault(outside[place], place)
        return list(found.values())

    def proof(self, sets: Sets) -> int | None:
        """Boxes that leave no assignment; `None` when there is one."""
        compiled = self.compiled
        self.used = 0
        point, live = compiled.fixed(sets, self.among)
        if self._hit(point, live):
            return self.used
        candidates = {
            name: self._candidates(name, sets.get(name, domain.all), live)
            for name, domain in compiled.domains.items()
            if name not in point
        }
        return None if self._possible(live, candidates, frozenset(point)) else self.used

    def exists(self, sets: Sets) -> bool:
        """Whether there is an assignment: variables that no open rule speaks of are left out, but for empty sets."""
        compiled = self.compiled
        point, live = compiled.fixed(sets, self.among)
        if self._hit(point, live):
            return False
        open_ = [(name, sets.get(name, domain.all)) for name, domain in compiled.domains.items() if name not in point]
        return self.decide(open_, live, frozenset(point))

    def decide(self, open_: list[tuple[str, int]], live: int, done: frozenset[str]) -> bool:
        """Whether the open variables can be completed; `live` are the boxes that those done are inside of."""
        compiled = self.compiled
        if not all(allowed for _, allowed in open_):
            return False
        before = -1
        while before != len(open_):
            before = len(open_)
            open_, live = self._undecided(open_, live)
        # What is open decides, and it is the same for many values of what is fixed.
        key = (live, tuple(open_), done)
        known = compiled.known.get(key)
        if known is None:
            if len(compiled.known) > _KEPT:
                compiled.known.clear()
            candidates = {name: self._candidates(name, allowed, live) for name, allowed in open_}
            known = compiled.known[key] = self._possible(live, candidates, done)
        return known

    def _undecided(self, open_: list[tuple[str, int]], live: int) -> tuple[list[tuple[str, int]], int]:
        """The variables without a value that settles every rule about them; such a value is as good as any.

        It is looked for where it mostly is: absence, and the newest.
        """
        compiled, left = self.compiled, []
        for name, allowed in open_:
            about = live & compiled.mentions[name]
            if not about:
                continue
            outside = compiled.outside[name]
            last = outside[allowed.bit_length() - 1]
            if about & ~last:
                last = outside[compiled.kinds(name, allowed)[0]]
                if about & ~last:
                    left.append((name, allowed))
                    continue
            live &= ~last
        return left, live

    def _hit(self, point: Point, live: int) -> bool:
        hit = live & self.compiled.within(frozenset(point))
        self.used |= hit & -hit
        return bool(hit)

    def _candidates(self, name: str, allowed: int, live: int) -> list[int]:
        """One place for each set of values that no box that counts tells apart."""
        kinds = self.compiled.kinds(name, allowed)
        if not live & self.compiled.mentions[name]:
            return kinds[:1]
        outside = self.compiled.outside[name]
        return list({outside[place] & live: place for place in kinds}.values())

    def _possible(self, live: int, open_: Mapping[str, list[int]], done: frozenset[str]) -> bool:
        """Whether the open variables have values outside of all boxes, with those done."""
        compiled = self.compiled
        kept: dict[str, list[int]] = {}
        for name, places in open_.items():
            about = live & compiled.mentions[name]
            if not about:
                if not places:
                    return False
                continue
            # Forward checking: what already collides with the values chosen is not tried.
            reach, outside = about & compiled.within(done | {name}), compiled.outside[name]
            left = []
            for place in places:
                inside = about & ~outside[place]
                if not inside:
                    # This value settles every rule about the variable: it is as good as any.
                    live &= ~about
                    break
                hit = inside & reach
                if hit:
                    self.used |= hit & -hit
                else:
                    left.append(place)
            else:
                if not left:
                    self.failures[name] = self.failures.get(name, 0) + 1
                    return False
                kept[name] = left
        if not kept:
            return True
        # The variable with the fewest values left, and that failed most, decides soonest.
        name = min(kept, key=lambda item: len(kept[item]) / (1 + self.failures.get(item, 0)))
        places, outside = kept.pop(name), compiled.outside[name]
        return any(self._possible(live & ~outside[place], kept, done | {name}) for place in places)


def newest_first(domain: Domain, allowed: int) -> list[int]:
    """The places of a set: releases before pre-releases, newest first, absence last."""
    final = list(bits(allowed & domain.some & domain.final))[::-1]
    early = list(bits(allowed & domain.some & ~domain.final))[::-1]
    return [*final, *early, *bits(allowed & domain.absent)]
