"""The search for values that go together, which learns from each failure; `check`, `pick` and suggestions ask it. Pure.

It decides in the way of PubGrub: what cannot be true together is a `Clash`, sets of values of a few variables.
A variable is an axis, a package (its releases and its absence), or an extra of one (asked for, or not). A failure is
traced back along the clashes that led to it, and what follows from them is kept as a new clash. Sets of values are the
bits of integers. Clashes of rules are known from the start; those of requirements come while the search goes on,
because of a hundred packages with their thousand requirements only a few matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

STEP_LIMIT = 20_000
"""A search that takes more decisions is given up; the worst that was measured took a few hundred."""


class SearchLimitError(Exception):
    """The search took too many steps."""


@dataclass(slots=True, eq=False)
class Clash:
    """Sets of values that cannot all hold: not every variable of it can have a value of its set."""

    sets: dict[str, int]
    cause: object
    """Why, when it was not derived: what a release requires, or why releases cannot be installed."""
    parents: tuple[Clash, ...] = ()
    """The clashes from which it follows."""
    widen: Callable[[Clash], None] | None = None
    """Extends its sets to all releases for which it holds; called once, when a failure is traced back to it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for: a variable has one of some values."""

    variable: str
    mask: int


@dataclass(frozen=True, kw_only=True)
class SearchFailure:
    """Why there is no solution."""

    wishes: tuple[Wish, ...]
    """The wishes that cannot be fulfilled together; some of them may be left out still."""
    clashes: tuple[Clash, ...]
    """The clashes with a cause that exclude them, each once."""
    excluded: Mapping[Wish, int]
    """Wish -> values of its variable, its own among them, none of which goes with the other wishes."""


class ClashSource(Protocol):
    """Where the search learns about variables while it goes on."""

    def all_values(self, variable: str) -> int:
        """Return all values of a variable."""

    def absence(self, variable: str) -> int:
        """Return the bit of a variable's absence; 0 for one that always has a value."""

    def expand(self, variable: str, value: int) -> Sequence[Clash]:
        """Return what is known about one value of a variable, which has been chosen; nothing when it is asked again."""

    def prefer(self, variable: str, mask: int, values: Mapping[str, int]) -> int:
        """Return the bit of the best value of a mask that has no absence; `values` are left of the variables."""


@dataclass(slots=True)
class _Step:
    """One narrowing of a variable's values."""

    variable: str
    mask: int
    """The values that are left."""
    level: int
    clash: Clash | None
    """The clash from which it follows; `None` for a decision."""


@dataclass(kw_only=True)
class Search:
    """A search; it can be asked again with other wishes, and what it learned is kept."""

    source: ClashSource
    about: dict[str, list[Clash]] = field(default_factory=dict)
    """Variable -> the clashes that are about it."""
    steps: list[_Step] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    """Variable -> the values that are left, for those that are narrowed."""
    history: dict[str, list[int]] = field(default_factory=dict)
    """Variable -> the places of its steps."""
    starts: list[int] = field(default_factory=list)
    """The place at which each level begins."""
    open: list[str] = field(default_factory=list)
    """The variables that were narrowed, in that order; some are to be decided."""
    unexpanded: list[str] = field(default_factory=list)
    decisions: int = 0
    absences: dict[str, int] = field(default_factory=dict)
    """Variable -> the bit of its absence, for those that were narrowed."""
    domains: dict[str, int] = field(default_factory=dict)
    """Variable -> all its values, for those that a clash is about."""
    settled: dict[str, int] = field(default_factory=dict)
    """What followed from the last wishes before anything was decided: variable -> the bit of its only value."""
    decided: dict[str, None] = field(default_factory=dict)
    """The variables that get a value even when nothing narrows them: axes, and those whose absence may collide."""
    impossible: Clash | None = None
    """A clash that no values avoid."""
    fresh: list[Clash] = field(default_factory=list)
    """The clashes that were not applied yet while nothing is wished."""
    wished: list[Wish] = field(default_factory=list)
    """The wishes of the last question, of which each began a level."""

    def prepare(self) -> None:
        """Apply the clashes that are known before anything is wished."""
        self.impossible = self.impossible or self._propagate_fresh()

    def copy(self) -> Search:
        """Return a search that knows the same, and learns for itself."""
        return Search(
            source=self.source,
            about={name: [*clashes] for name, clashes in self.about.items()},
            steps=[*self.steps],
            values={**self.values},
            history={name: [*places] for name, places in self.history.items()},
            starts=[*self.starts],
            open=[*self.open],
            absences={**self.absences},
            domains={**self.domains},
            decided={**self.decided},
            impossible=self.impossible,
            fresh=[*self.fresh],
            wished=[*self.wished],
        )

    def add(self, clash: Clash) -> None:
        """Add a clash that is known before the search."""
        source = self.source
        # What every value of a variable takes part in says nothing about it.
        clash.sets = {name: mask for name, mask in clash.sets.items() if mask != source.all_values(name)}
        if not clash.sets:
            self.impossible = clash
        doubtful = [name for name, mask in clash.sets.items() if mask & source.absence(name)]
        self.fresh.append(clash)
        for name in clash.sets:
            self.about.setdefault(name, []).append(clash)
            if not source.absence(name) or (len(doubtful) > 1 and name in doubtful):
                self.decided[name] = None

    def solve(
        self, wishes: Sequence[Wish], prefer: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, int] | SearchFailure:
        """Return variable -> the bit of its value for all that is needed, or why the wishes cannot be fulfilled.

        `prefer` has variables whose best values come first, in the order given, before anything else is decided.

        Raises:
            SearchLimitError: the search took too many steps.
        """
        # Questions mostly begin with the same wishes, and what follows from those follows again.
        self._go_back(0 if self.fresh else _count_alike(self.wished, wishes))
        self.wished = [*wishes]
        self.decisions = 0
        self.prepare()
        clash = self.impossible
        while True:
            if clash is not None:
                learned = self._learn(clash)
                if learned is None:
                    self.wished.clear()
                    return self._explain(clash, wishes)
                clash = self._add(learned)
                continue
            level = len(self.starts)
            if level < len(wishes):
                wish = wishes[level]
                left = self._left(wish.variable)
                if not wish.mask:
                    return SearchFailure(wishes=(wish,), clashes=(), excluded={wish: 0})
                if not left & wish.mask:
                    refused = Clash({wish.variable: self.source.all_values(wish.variable) & ~wish.mask}, wish)
                    return self._explain(refused, wishes)
                self.starts.append(len(self.steps))
                clash = self._narrow_and_propagate(wish.variable, left & wish.mask)
                continue
            if not self.decisions:
                self.settled = {name: mask for name, mask in self.values.items() if not mask & (mask - 1)}
            chosen = self._choose(prefer or {})
            if chosen is None:
                source = self.source
                return {name: mask for name, mask in self.values.items() if not mask & source.absence(name)}
            self.decisions += 1
            if self.decisions > STEP_LIMIT:
                raise SearchLimitError
            self.starts.append(len(self.steps))
            clash = self._narrow_and_propagate(*chosen)

    def find_minimal_failure(self, wishes: Sequence[Wish], always: Sequence[Wish] = ()) -> SearchFailure | None:
        """Return why wishes cannot be fulfilled together, none of which can be left out; `None` when they can.

        Args:
            wishes: the earlier ones are left out first.
            always: wishes that are never left out; those of them that the failure needs are among its wishes too.
        """
        failure = self.solve([*always, *wishes])
        if not isinstance(failure, SearchFailure):
            return None
        kept = list(wishes)
        for wish in wishes:
            fewer = [item for item in kept if item != wish]
            result = self.solve([*always, *fewer]) if wish in failure.excluded else failure
            if isinstance(result, SearchFailure):
                kept, failure = fewer, result
        return failure

    def _left(self, variable: str) -> int:
        mask = self.values.get(variable)
        return self._all_values(variable) if mask is None else mask

    def _all_values(self, variable: str) -> int:
        mask = self.domains.get(variable)
        if mask is None:
            mask = self.domains[variable] = self.source.all_values(variable)
        return mask

    def _choose(self, prefer: Mapping[str, Sequence[int]]) -> tuple[str, int] | None:
        """The variable to decide next with its best value; `None` when everything needed is decided."""
        for name, bits in prefer.items():
            left = self._left(name)
            if left & (left - 1):
                best = next((bit for bit in bits if bit & left), None)
                if best is not None:
                    return name, best
        values, absences, best_count, best_name = self.values, self.absences, 0, None
        for name in self.open:
            mask = values[name]
            if mask & (mask - 1) and not mask & absences[name]:
                count = mask.bit_count()
                if best_name is None or count < best_count:
                    best_count, best_name = count, name
        if best_name is not None:
            return best_name, self.source.prefer(best_name, values[best_name], values)
        for name in self.decided:
            left = self._left(name)
            if left & (left - 1):
                return name, left & self.source.absence(name) or self.source.prefer(name, left, values)
        return None

    def _narrow(self, variable: str, mask: int, clash: Clash | None) -> None:
        if variable not in self.values:
            self.open.append(variable)
            if variable not in self.absences:
                self.absences[variable] = self.source.absence(variable)
        self.values[variable] = mask
        self.history.setdefault(variable, []).append(len(self.steps))
        self.steps.append(_Step(variable, mask, len(self.starts), clash))
        if not mask & (mask - 1) and not mask & self.absences[variable]:
            self.unexpanded.append(variable)

    def _narrow_and_propagate(self, variable: str, mask: int) -> Clash | None:
        self._narrow(variable, mask, None)
        return self._propagate([variable])

    def _add(self, clash: Clash) -> Clash | None:
        """Add a clash that was learned, and apply it at the first level at which anything follows from it."""
        for name in clash.sets:
            self.about.setdefault(name, []).append(clash)
        touched: list[str] = []
        failed = self._apply(clash, touched)
        return failed or self._propagate(touched)

    def _propagate_fresh(self) -> Clash | None:
        """Apply the clashes that came since nothing was wished the last time; return one that is violated."""
        touched: list[str] = []
        for clash in self.fresh:
            failed = self._apply(clash, touched)
            if failed is not None:
                return failed
        self.fresh.clear()
        return self._propagate(touched)

    def _propagate(self, touched: list[str]) -> Clash | None:
        """Apply the clashes about changed variables until nothing changes; return one that is violated."""
        while touched or self.unexpanded:
            while touched:
                name = touched.pop()
                left = self.values[name]
                # While the variable itself can avoid a clash, nothing follows from it that did not before.
                for clash in [clash for clash in self.about.get(name, ()) if left & clash.sets[name] == left]:
                    failed = self._apply(clash, touched)
                    if failed is not None:
                        return failed
            while self.unexpanded:
                name = self.unexpanded.pop()
                violated = None
                for clash in self.source.expand(name, self.values[name]):
                    self.fresh.append(clash)
                    for other in clash.sets:
                        self.about.setdefault(other, []).append(clash)
                    violated = violated or self._apply(clash, touched)
                if violated is not None:
                    return violated
        return None

    def _apply(self, clash: Clash, touched: list[str]) -> Clash | None:
        """Narrow the only variable of a clash that can still avoid it; return the clash when none can."""
        values, free = self.values, None
        for name, mask in clash.sets.items():
            left = values.get(name)
            if left is None:
                left = self._all_values(name)
            if left & ~mask:
                if free is not None or not left & mask:
                    return None
                free = name
        if free is None:
            return clash
        self._narrow(free, self._left(free) & ~clash.sets[free], clash)
        touched.append(free)
        return None

    def _go_back(self, level: int) -> None:
        """Take back everything from a level on, which is not kept itself."""
        if level >= len(self.starts):
            return
        start = self.starts[level]
        del self.starts[level:]
        for step in reversed(self.steps[start:]):
            places = self.history[step.variable]
            places.pop()
            if places:
                self.values[step.variable] = self.steps[places[-1]].mask
            else:
                del self.values[step.variable]
        del self.steps[start:]
        self.open = [name for name in self.open if name in self.values]
        self.unexpanded.clear()

    def _satisfier(self, variable: str, mask: int) -> int:
        """The place of the step since which a variable has only values of a mask."""
        for place in self.history[variable]:
            if not self.steps[place].mask & ~mask:
                return place
        raise AssertionError(variable)

    def _learn(self, clash: Clash) -> Clash | None:
        """Go back to where a violated clash leaves one choice, and return the clash that says so; `None`: nowhere."""
        while True:
            _widen(clash)
            places = {name: self._satisfier(name, mask) for name, mask in clash.sets.items()}
            last = max(places, key=places.__getitem__, default=None)
            if last is None or self.steps[places[last]].level == 0:
                return None
            step = self.steps[places[last]]
            level = max((self.steps[place].level for name, place in places.items() if name != last), default=0)
            if step.clash is None or level < step.level:
                self._go_back(level)
                return clash
            clash = self._resolve(clash, step.clash, last)

    def _resolve(self, one: Clash, two: Clash, variable: str) -> Clash:
        """Return what follows from two clashes whatever the value of a variable is."""
        _widen(two)
        either = one.sets[variable] | two.sets[variable]
        sets = {name: mask for name, mask in one.sets.items() if name != variable}
        for name, mask in two.sets.items():
            if name != variable:
                sets[name] = sets.get(name, -1) & mask
        if either != self.source.all_values(variable):
            sets[variable] = either
        return Clash(sets, None, (one, two))

    def _explain(self, clash: Clash, wishes: Sequence[Wish]) -> SearchFailure:
        """Trace a violated clash back to the wishes, and collect the clashes with a cause on the way."""
        excluded: dict[Wish, int] = {}
        while clash.sets:
            _widen(clash)
            places = {name: self._satisfier(name, mask) for name, mask in clash.sets.items()}
            last = max(places, key=places.__getitem__)
            step = self.steps[places[last]]
            reason = step.clash
            if reason is None:
                wish = wishes[step.level - 1]
                excluded[wish] = excluded.get(wish, wish.mask) | clash.sets[last]
                reason = Clash({last: self.source.all_values(last) & ~wish.mask}, wish)
            clash = self._resolve(clash, reason, last)
        causes = [item for item in _ancestors(clash) if not item.parents]
        for item in causes:
            if isinstance(item.cause, Wish):
                excluded.setdefault(item.cause, item.cause.mask)
        return SearchFailure(
            wishes=tuple(wish for wish in wishes if wish in excluded),
            clashes=tuple(item for item in causes if not isinstance(item.cause, Wish)),
            excluded=excluded,
        )


def _count_alike(one: Sequence[Wish], two: Sequence[Wish]) -> int:
    """Return with how many of the same wishes two lists begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))


def _widen(clash: Clash) -> None:
    if clash.widen is not None:
        widen, clash.widen = clash.widen, None
        widen(clash)


def _ancestors(clash: Clash) -> list[Clash]:
    """A clash and all clashes from which it was derived, each once."""
    ancestors: dict[int, Clash] = {}
    left = [clash]
    while left:
        item = left.pop()
        if id(item) not in ancestors:
            ancestors[id(item)] = item
            left.extend(item.parents)
    return list(ancestors.values())
