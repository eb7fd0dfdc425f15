"""Search over assignments: is there one without a broken rule, which is best, what excludes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from knowngood.solving.compiled import KEPT, Compiled, Point, Sets


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
        ever taken back. What is open decides, and it is the same for many values of what is fixed.
        """
        compiled = self.compiled
        fixed, live = compiled.fixed(sets, self.among)
        left = {name: sets.get(name, domain.all) for name, domain in compiled.domains.items() if name not in fixed}
        order = tuple((name, tuple(self.order[name])) for name in left if name in self.order)
        key = (live, tuple(left.items()), order, done := frozenset(fixed))
        if key not in compiled.firsts:
            if len(compiled.firsts) > KEPT:
                compiled.firsts.clear()
            compiled.firsts[key] = None if self._hit(fixed, live) else self._first(left, live, done)
        found = compiled.firsts[key]
        return None if found is None else {name: {**fixed, **found}[name] for name in compiled.domains}

    def _first(self, left: dict[str, int], live: int, done: frozenset[str]) -> Point | None:
        """As `first`, for the variables that are left."""
        if not self.completes(left, live, done):
            return None
        point: Point = {}
        for name, allowed in list(left.items()):
            del left[name]
            done |= {name}
            places, outside = self._preference(name, allowed), self.compiled.outside[name]
            about = live & self.compiled.mentions[name]
            for place in places:
                # There is a completion: with a value that settles every rule about the variable, and with the last one
                # when there is none with the others.
                settled = not about & ~outside[place]
                if settled or place == places[-1] or self.completes(left, live & ~outside[place], done):
                    point[name], live = place, live & ~outside[place]
                    break
        return point

    def completes(self, left: Sets, live: int, done: frozenset[str]) -> bool:
        """Whether what is left can be completed; `live` are the boxes that the values of those done are inside of."""
        if live & self.compiled.within(done):
            return False
        open_, live = self.compiled.open(left, done, live)
        return self.decide(open_, live, done)

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
        point, live = self.compiled.fixed(sets, self.among)
        return self.completes(sets, live, frozenset(point))

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
            if len(compiled.known) > KEPT:
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
