"""Finds which package changes turn a good lock into a bad one. Pure, but for the tester that is passed in.

Both locks are tested first: the search begins only when the good one is good and the bad one is bad. A binary search
over the ordered changes (`package_changes`) finds the shortest bad prefix; its last step is a culprit. If the culprit
alone is not bad, it needs another one as well, which is searched for among the steps before it. One culprit among 40
changes costs at most 9 environments: 2 for the ends, 6 to find it, and one that shows that it is bad alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from knowngood.reports.package_changes import (
    ChangeStep,
    KnownRequirements,
    LockVersions,
    PackageChange,
    list_package_changes,
    list_ties,
    mix_locks,
    order_changes,
)


class EnvironmentOutcome(StrEnum):
    """What the command reported in an environment."""

    GOOD = "good"
    BAD = "bad"
    UNRESOLVED = "unresolved"
    """The environment could not be made, or the command could not tell."""


class EnvironmentTester(Protocol):
    """Makes an environment of a lock and runs the command in it."""

    def outcome(self, versions: LockVersions) -> EnvironmentOutcome:
        """Return what the command reports in an environment with these versions."""
        ...


class EndProblem(StrEnum):
    """Why a search between two locks is not begun."""

    SAME = "same"
    """The two locks have the same packages."""
    SWAPPED = "swapped"
    """The good lock is bad and the bad lock is good."""
    GOOD_FAILS = "good-fails"
    BAD_PASSES = "bad-passes"
    UNTESTED = "untested"
    """At least one lock cannot be tried, and the other one is as claimed or cannot be tried either."""


@dataclass(frozen=True, kw_only=True)
class BisectResult:
    """The result of a bisection."""

    culprits: tuple[PackageChange, ...]
    """The changes that turn the good lock bad, each of them necessary; empty when there are none."""
    along: tuple[PackageChange, ...] = ()
    """Changes without which the culprits cannot be made."""
    proven: bool
    """Observed: bad with these changes and no others, and good without them."""
    environments: int
    """How many environments were made."""
    changed: int
    """How many packages differ between the locks."""
    note: str = ""
    """Why there is no culprit, or why there is more than one; empty for a single proven culprit."""
    good_end: EnvironmentOutcome | None = None
    """What the command reported with the good lock; `None` when that was not tested."""
    bad_end: EnvironmentOutcome | None = None
    """What the command reported with the bad lock; `None` when that was not tested."""
    problem: EndProblem | None = None
    """Why nothing was searched; `None` when the ends are as claimed."""
    ties: tuple[str, ...] = ()
    """The requirements because of which culprits can only change together, and with the changes `along`."""
    unread: tuple[str, ...] = ()
    """The releases of culprits whose requirements could not be read."""
    untried: tuple[str, ...] = ()
    """Why environments could not be tried, in the order in which that happened."""


class _LimitReachedError(Exception):
    """The search has made as many environments as it may."""


def bisect_locks(
    good: LockVersions, bad: LockVersions, requirements: KnownRequirements, tester: EnvironmentTester, *, most: int = 40
) -> BisectResult:
    """Test both locks, then find the changes that turn the good one bad.

    At most `most` environments are made, and never the same one twice.
    """
    ordered = order_changes(list_package_changes(good, bad), requirements)
    tested = _TestedSteps(ordered, lambda steps: tester.outcome(mix_locks(good, _changes_of(ordered, steps))), most)
    changed = sum(len(step.changes) for step in ordered)
    if not ordered:
        note = "the locks are the same: it is not the packages"
        return BisectResult(culprits=(), proven=False, environments=0, changed=0, note=note, problem=EndProblem.SAME)
    good_end, bad_end = tested(frozenset()), tested(tested.suspects)
    if problem := judge_ends(good_end, bad_end):
        return BisectResult(
            culprits=(),
            proven=False,
            environments=len(tested.outcomes),
            changed=changed,
            note=_describe_ends(good_end, bad_end),
            good_end=good_end,
            bad_end=bad_end,
            problem=problem,
        )
    try:
        steps, ambiguous = _search_steps(tested)
        steps, reasons = (steps, []) if ambiguous else _narrow_to_one(tested, steps)
    except _LimitReachedError:
        steps, ambiguous = tested.suspects, True
        reasons = [f"stopped after {most} environments: it is among these"]
    else:
        reasons += ["no mix of these could be tried, so they are not told apart"] if ambiguous else []
    culprits, along = _changes_of(ordered, steps), _changes_of(ordered, _required_steps(ordered, steps) - steps)
    reasons += [_describe_ring(ordered[step], requirements) for step in steps if len(ordered[step].changes) > 1]
    return BisectResult(
        culprits=tuple(culprits),
        along=tuple(along),
        proven=not ambiguous,
        environments=len(tested.outcomes),
        changed=changed,
        note="; ".join(reasons),
        good_end=good_end,
        bad_end=bad_end,
        ties=tuple(list_ties([*culprits, *along], requirements)),
    )


def judge_ends(good: EnvironmentOutcome, bad: EnvironmentOutcome) -> EndProblem | None:
    """Return what is wrong with the two ends of a search, or `None` when they are as claimed."""
    if good is EnvironmentOutcome.BAD:
        return EndProblem.SWAPPED if bad is EnvironmentOutcome.GOOD else EndProblem.GOOD_FAILS
    if bad is EnvironmentOutcome.GOOD:
        return EndProblem.BAD_PASSES
    return EndProblem.UNTESTED if EnvironmentOutcome.UNRESOLVED in (good, bad) else None


def _describe_ends(good: EnvironmentOutcome, bad: EnvironmentOutcome) -> str:
    """Return the sentence that names which of two ends is not as claimed."""
    if (good, bad) == (EnvironmentOutcome.BAD, EnvironmentOutcome.GOOD):
        return "the ends are swapped: the good lock fails and the bad lock passes"
    if (good, bad) == (EnvironmentOutcome.BAD, EnvironmentOutcome.BAD):
        return "the good lock fails as well: it is not what changed between the two"
    if (good, bad) == (EnvironmentOutcome.GOOD, EnvironmentOutcome.GOOD):
        return "the bad lock passes here: it is not the packages, or not on this machine"
    words = {EnvironmentOutcome.BAD: "fails", EnvironmentOutcome.GOOD: "passes here"}
    words[EnvironmentOutcome.UNRESOLVED] = "cannot be tried here"
    wrong = [f"the good lock {words[good]}"] if good is not EnvironmentOutcome.GOOD else []
    wrong += [f"the bad lock {words[bad]}"] if bad is not EnvironmentOutcome.BAD else []
    return f"{' and '.join(wrong)}, so nothing was searched"


def _describe_ring(step: ChangeStep, requirements: KnownRequirements) -> str:
    """Return why the packages of a step cannot be told apart, with the requirements that tie them."""
    ties = list_ties(step.changes, requirements)
    names = ", ".join(change.name for change in step.changes)
    more = f" and {len(ties) - 4} more" if len(ties) > 4 else ""
    return f"{names} can only change together: {', '.join(ties[:4])}{more}"


class _TestedSteps:
    """The environments made so far, each by the steps that were made in it."""

    def __init__(
        self, ordered: Sequence[ChangeStep], test: Callable[[frozenset[int]], EnvironmentOutcome], most: int
    ) -> None:
        self.ordered, self.most = ordered, most
        self.outcomes: dict[frozenset[int], EnvironmentOutcome] = {}
        self.suspects = frozenset(range(len(ordered)))
        """The steps that contain the culprits, as far as is known."""
        self._test = test

    def __call__(self, steps: frozenset[int]) -> EnvironmentOutcome:
        """Return the outcome with these steps and those that they need; test it unless that was done before."""
        steps |= _required_steps(self.ordered, steps)
        if steps not in self.outcomes:
            if len(self.outcomes) >= self.most:
                raise _LimitReachedError
            self.outcomes[steps] = self._test(steps)
        return self.outcomes[steps]


def _search_steps(tested: _TestedSteps) -> tuple[frozenset[int], bool]:
    """Return steps that are bad without any other, and whether some of them were not told apart.

    The ends have been tested. The culprits so far, together with the steps before `high`, are always bad.
    """
    culprits, high, ambiguous = frozenset[int](), len(tested.ordered), False
    while tested(culprits) is not EnvironmentOutcome.BAD:
        low, edge = _find_edge(tested, high, culprits)
        culprits |= set(range(low, edge))
        ambiguous |= edge - low > 1
        tested.suspects = culprits | set(range(low))
        high = low
    tested.suspects = culprits
    return culprits, ambiguous


def _narrow_to_one(tested: _TestedSteps, culprits: frozenset[int]) -> tuple[frozenset[int], list[str]]:
    """Return the one step that is bad alone, if there is one, else all culprits and why there is more than one."""
    if len(culprits) == 1:
        return culprits, []
    outcomes = {step: tested(frozenset({step})) for step in sorted(culprits)}
    for step, outcome in outcomes.items():
        if outcome is EnvironmentOutcome.BAD:
            return frozenset({step}), []
    untried = [step for step, outcome in outcomes.items() if outcome is EnvironmentOutcome.UNRESOLVED]
    if untried:
        names = ", ".join(change.name for change in _changes_of(tested.ordered, untried))
        return culprits, [f"only together do they make it fail; without the others this could not be tried: {names}"]
    return culprits, ["only together do they make it fail: each of them alone passes"]


def _find_edge(tested: _TestedSteps, high: int, culprits: frozenset[int]) -> tuple[int, int]:
    """Return `low` and `high` such that the steps before `low` are not bad and those before `high` are.

    They differ by more than one step where no prefix in between could be tested.
    """
    low = 0
    while high - low > 1:
        for middle in sorted(range(low + 1, high), key=lambda place: abs(2 * place - low - high)):
            outcome = tested(culprits | set(range(middle)))
            if outcome is not EnvironmentOutcome.UNRESOLVED:
                break
        else:
            return low, high
        low, high = (low, middle) if outcome is EnvironmentOutcome.BAD else (middle, high)
        tested.suspects = culprits | set(range(low, high))
    return low, high


def _required_steps(ordered: Sequence[ChangeStep], steps: Iterable[int]) -> frozenset[int]:
    return frozenset(number for step in steps for number in ordered[step].needs)


def _changes_of(ordered: Sequence[ChangeStep], steps: Iterable[int]) -> list[PackageChange]:
    return sorted(change for step in steps for change in ordered[step].changes)
