"""Search for an assignment that breaks no rule: whether there is one, which is best, what excludes all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from knowngood_facts.compat.value_domain import ValueDomain, iterate_bits

if TYPE_CHECKING:
    from knowngood_facts.compat.rule_boxes import Box, ValueSpace

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
        """Cache of `knowngood_facts.compat.findings`: the replacements of a value."""
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
        """Cache of `knowngood_facts.compat.findings`: the rules that exclude some sets of values."""
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


@dataclass(kw_only=True)
class BoxSearch:
    """One search; when it finds nothing, `used` has the boxes that excluded something, which are a proof."""

    index: BoxIndex
    among: int
    """The bits of the boxes that count."""
    order: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Variable -> places, the preferred first; for other variables the newest first and absence last."""
    first: tuple[str, ...] = ()
    """The variables that get their values before the others."""
    used: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Variable -> how often it was left without a value."""

    def find_best(self, sets: ValueSets) -> Assignment | None:
        """Return the best assignment that breaks no rule, `None` when there is none.

        Best is by the order of the variables (`first`, then the domains'), then by `order`. One variable after the
        other gets its first value with which the others can still be completed, so no choice is ever taken back. The
        answer is kept by what is open, which is the same for many values of what is fixed.
        """
        index = self.index
        fixed, live = index.split_fixed(sets, self.among)
        names = [name for name in dict.fromkeys((*self.first, *index.domains)) if name not in fixed]
        left = {name: sets.get(name, index.domains[name].all) for name in names}
        order = tuple((name, tuple(self.order[name])) for name in left if name in self.order)
        key = (live, tuple(left.items()), order, done := frozenset(fixed))
        if key not in index.solution_cache:
            if len(index.solution_cache) > CACHE_LIMIT:
                index.solution_cache.clear()
            index.solution_cache[key] = None if self._is_broken(fixed, live) else self._best_of_open(left, live, done)
        best = index.solution_cache[key]
        return None if best is None else {name: {**fixed, **best}[name] for name in index.domains}

    def _best_of_open(self, left: dict[str, int], live: int, done: frozenset[str]) -> Assignment | None:
        if not self.can_complete(left, live, done):
            return None
        assignment: Assignment = {}
        for name, allowed in list(left.items()):
            del left[name]
            done |= {name}
            places, outside = self._preferred_places(name, allowed), self.index.outside[name]
            about = live & self.index.mentions[name]
            for place in places:
                # No search is needed for a value with which every rule about the variable holds, nor for the last one:
                # there is a completion, and it is not with one of the others.
                settled = not about & ~outside[place]
                if settled or place == places[-1] or self.can_complete(left, live & ~outside[place], done):
                    assignment[name], live = place, live & ~outside[place]
                    break
        return assignment

    def can_complete(self, left: ValueSets, live: int, done: frozenset[str]) -> bool:
        """Whether the variables left can get values; `live` are the boxes in which the values of those `done` lie."""
        if live & self.index.within(done):
            return False
        open_, live = self.index.open_variables(left, done, live)
        return self.decide(open_, live, done)

    def _preferred_places(self, name: str, allowed: int) -> Sequence[int]:
        """The places worth a try: the first of each group that no box tells apart."""
        order = self.order.get(name)
        if order is None:
            return self.index.kinds(name, allowed)
        outside = self.index.outside[name]
        first: dict[int, int] = {}
        for place in order:
            if allowed >> place & 1:
                first.setdefault(outside[place], place)
        return list(first.values())

    def prove_impossible(self, sets: ValueSets) -> int | None:
        """Return boxes that together leave no assignment; `None` when there is one."""
        index = self.index
        self.used = 0
        assignment, live = index.split_fixed(sets, self.among)
        if self._is_broken(assignment, live):
            return self.used
        candidates = {
            name: self._candidates(name, sets.get(name, domain.all), live)
            for name, domain in index.domains.items()
            if name not in assignment
        }
        return None if self._possible(live, candidates, frozenset(assignment)) else self.used

    def exists(self, sets: ValueSets) -> bool:
        """Whether there is an assignment that breaks no rule."""
        assignment, live = self.index.split_fixed(sets, self.among)
        return self.can_complete(sets, live, frozenset(assignment))

    def decide(self, open_: list[tuple[str, int]], live: int, done: frozenset[str]) -> bool:
        """Whether the open variables can get values; `live` are the boxes in which the values of those `done` lie."""
        index = self.index
        if not all(allowed for _, allowed in open_):
            return False
        before = -1
        while before != len(open_):
            before = len(open_)
            open_, live = self._undecided(open_, live)
        # The answer depends on what is open only, which is the same for many values of what is fixed.
        key = (live, tuple(open_), done)
        possible = index.existence_cache.get(key)
        if possible is None:
            if len(index.existence_cache) > CACHE_LIMIT:
                index.existence_cache.clear()
            candidates = {name: self._candidates(name, allowed, live) for name, allowed in open_}
            possible = index.existence_cache[key] = self._possible(live, candidates, done)
        return possible

    def _undecided(self, open_: list[tuple[str, int]], live: int) -> tuple[list[tuple[str, int]], int]:
        """Leave out the variables that have a value with which every rule about them holds: they can take it.

        Only the places where such a value mostly is are looked at: absence, and the newest release.
        """
        index, left = self.index, []
        for name, allowed in open_:
            about = live & index.mentions[name]
            if not about:
                continue
            outside = index.outside[name]
            last = outside[allowed.bit_length() - 1]
            if about & ~last:
                last = outside[index.kinds(name, allowed)[0]]
                if about & ~last:
                    left.append((name, allowed))
                    continue
            live &= ~last
        return left, live

    def _is_broken(self, assignment: Assignment, live: int) -> bool:
        broken = live & self.index.within(frozenset(assignment))
        self.used |= broken & -broken
        return bool(broken)

    def _candidates(self, name: str, allowed: int, live: int) -> list[int]:
        """One place for each group of values that no box that counts tells apart."""
        kinds = self.index.kinds(name, allowed)
        if not live & self.index.mentions[name]:
            return kinds[:1]
        outside = self.index.outside[name]
        return list({outside[place] & live: place for place in kinds}.values())

    def _possible(self, live: int, open_: Mapping[str, list[int]], done: frozenset[str]) -> bool:
        """Whether the open variables have values with which no box contains the whole assignment."""
        index = self.index
        kept: dict[str, list[int]] = {}
        for name, places in open_.items():
            about = live & index.mentions[name]
            if not about:
                if not places:
                    return False
                continue
            # Forward checking: a value that collides with the values chosen already is not tried.
            reach, outside = about & index.within(done | {name}), index.outside[name]
            left = []
            for place in places:
                inside = about & ~outside[place]
                if not inside:
                    # With this value every rule about the variable holds: no other value can be better.
                    live &= ~about
                    break
                broken = inside & reach
                if broken:
                    self.used |= broken & -broken
                else:
                    left.append(place)
            else:
                if not left:
                    self.failures[name] = self.failures.get(name, 0) + 1
                    return False
                kept[name] = left
        if not kept:
            return True
        # The variable with the fewest values left, and that failed most often, fails soonest.
        name = min(kept, key=lambda item: len(kept[item]) / (1 + self.failures.get(item, 0)))
        places, outside = kept.pop(name), index.outside[name]
        return any(self._possible(live & ~outside[place], kept, done | {name}) for place in places)
