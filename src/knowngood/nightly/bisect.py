"""Which change of a lock turns good into bad: a binary search over changes that fit together. Pure but for the tests.

The changes are in an order of which every beginning is a lock that fits together (`knowngood.nightly.moves`). The
shortest beginning that is bad ends with a culprit. If the culprit alone is not bad, it takes another one too, which is
searched for among those before it. One culprit among 40 changes costs at most 7 environments: 6 to find it and one that
shows that it alone does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from knowngood.nightly.moves import Move, Requires, Step, Versions, mixed, moves, steps


class Outcome(StrEnum):
    """What the command said of an environment."""

    GOOD = "good"
    BAD = "bad"
    UNRESOLVED = "unresolved"
    """The environment could not be made, or the command could not tell."""


class Environment(Protocol):
    """Makes an environment of a lock and runs the command in it."""

    def outcome(self, versions: Versions) -> Outcome:
        """What the command says there."""
        ...


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a bisection came to."""

    culprits: tuple[Move, ...]
    """The moves that turn the good lock bad, each of them needed; empty when there is none."""
    along: tuple[Move, ...] = ()
    """Moves that the culprits cannot be moved without."""
    proven: bool
    """Seen: bad with these moved and nothing else, and good without."""
    environments: int
    changed: int
    """How many packages differ between the locks."""
    note: str = ""


class _SpentError(Exception):
    """No more environments are allowed."""


def bisect(good: Versions, bad: Versions, requires: Requires, environment: Environment, *, most: int = 30) -> Found:
    """The moves that do it; makes at most `most` environments, and never two of the same."""
    ordered = steps(moves(good, bad), requires)
    tried = _Tried(ordered, lambda chosen: environment.outcome(mixed(good, _moves(ordered, chosen))), most)
    note, kept, proven = "", frozenset[int](), False
    try:
        kept, note, proven = _search(tried)
    except _SpentError:
        kept, note = tried.suspects, f"stopped after {most} environments: it is among these"
    needed = _needs(ordered, kept) - kept
    return Found(
        culprits=tuple(_moves(ordered, kept)),
        along=tuple(_moves(ordered, needed)),
        proven=proven,
        environments=len(tried.seen),
        changed=sum(len(step.moves) for step in ordered),
        note=note,
    )


class _Tried:
    """Environments that were made, by the steps that were moved in them."""

    def __init__(self, ordered: Sequence[Step], outcome: Callable[[frozenset[int]], Outcome], most: int) -> None:
        self.ordered, self.most = ordered, most
        self.seen: dict[frozenset[int], Outcome] = {}
        self.suspects = frozenset(range(len(ordered)))
        """Where the culprits are, as far as it is known."""
        self._outcome = outcome

    def __call__(self, chosen: frozenset[int]) -> Outcome:
        whole = chosen | _needs(self.ordered, chosen)
        if whole not in self.seen:
            if len(self.seen) >= self.most:
                raise _SpentError
            self.seen[whole] = self._outcome(whole)
        return self.seen[whole]

    def saw(self, outcome: Outcome) -> bool:
        return outcome in self.seen.values()


def _search(tried: _Tried) -> tuple[frozenset[int], str, bool]:
    """The steps that do it, a note, and whether that was seen."""
    nothing, everything = frozenset[int](), frozenset(range(len(tried.ordered)))
    if not everything:
        return nothing, "the locks are the same: it is not the packages", False
    kept, high, vague = nothing, len(tried.ordered), False
    while True:
        low, high = _edge(tried, high, kept)
        kept |= set(range(low, high))
        vague |= high - low > 1
        tried.suspects = kept
        if tried(kept) is Outcome.BAD:
            break
        if not tried.saw(Outcome.BAD) and (outcome := tried(everything)) is not Outcome.BAD:
            return nothing, _no_bad(outcome), False
        if low == 0:  # with it all of what is bad was put together again, and is not bad
            return kept, "the same lock was seen bad, and then not: the command does not always say the same", False
        high = low
    if not tried.saw(Outcome.GOOD) and (outcome := tried(nothing)) is not Outcome.GOOD:
        said = "fails as well" if outcome is Outcome.BAD else "cannot be tried"
        return nothing, f"the good lock {said}: it is not what changed between the two", False
    note = "no mix of these could be tried, so they are not told apart" if vague else ""
    return kept, note, not vague


def _no_bad(outcome: Outcome) -> str:
    if outcome is Outcome.GOOD:
        return "the bad lock passes here: it is not the packages, or not on this machine"
    return "the bad lock cannot be tried here, so nothing is known"


def _edge(tried: _Tried, high: int, kept: frozenset[int]) -> tuple[int, int]:
    """Steps low to high, of which the beginning up to low is not bad and the one up to high is."""
    low = 0
    while high - low > 1:
        for middle in sorted(range(low + 1, high), key=lambda place: abs(2 * place - low - high)):
            outcome = tried(kept | set(range(middle)))
            if outcome is not Outcome.UNRESOLVED:
                break
        else:
            return low, high
        low, high = (low, middle) if outcome is Outcome.BAD else (middle, high)
        tried.suspects = kept | set(range(low, high))
    return low, high


def _needs(ordered: Sequence[Step], chosen: frozenset[int]) -> frozenset[int]:
    return frozenset(number for place in chosen for number in ordered[place].needs)


def _moves(ordered: Sequence[Step], chosen: frozenset[int]) -> list[Move]:
    return sorted(move for place in chosen for move in ordered[place].moves)
