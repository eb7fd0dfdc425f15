"""Finds which package changes turn a good lock into a bad one. Pure, but for the tester that is passed in.

The changes are put into an order in which every prefix is a lock whose packages fit together: what a release requires
comes before it, and packages that require one another change in one step. A binary search finds the shortest bad
prefix; its last step is a culprit. If the culprit alone is not bad, it needs another one as well, which is searched for
among the steps before it. One culprit among 40 changes costs at most 7 environments: 6 to find it, and one that shows
that it is bad alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from packaging.specifiers import SpecifierSet

LockVersions = Mapping[str, str]
"""Canonical package name to version: all of a lock that bisecting needs."""

KnownRequirements = Mapping[tuple[str, str], Mapping[str, SpecifierSet]]
"""(package, version) to what it requires. A release that is missing here counts as requiring nothing."""


@dataclass(frozen=True, kw_only=True, order=True)
class PackageChange:
    """A package that differs between the two locks."""

    name: str
    old: str | None
    """The version in the good lock; `None` when it does not have the package."""
    new: str | None
    """The version in the bad lock; `None` when it does not have the package."""

    def __str__(self) -> str:
        return f"{self.name} {self.old or 'absent'} -> {self.new or 'absent'}"


@dataclass(frozen=True, kw_only=True)
class ChangeStep:
    """Packages that change together, and the earlier steps that they need."""

    changes: tuple[PackageChange, ...]
    needs: frozenset[int] = frozenset()
    """The indexes of all other steps without which this one cannot be made, direct and indirect."""


def list_package_changes(good: LockVersions, bad: LockVersions) -> list[PackageChange]:
    """Return the packages that differ between two locks, by name."""
    names = sorted(good.keys() | bad.keys())
    changes = (PackageChange(name=name, old=good.get(name), new=bad.get(name)) for name in names)
    return [change for change in changes if change.old != change.new]


def mix_locks(good: LockVersions, changes: Sequence[PackageChange]) -> dict[str, str]:
    """Return the good lock with some of the changes made."""
    mixed = dict(good)
    for change in changes:
        if change.new is None:
            mixed.pop(change.name, None)
        else:
            mixed[change.name] = change.new
    return mixed


def order_changes(changes: Sequence[PackageChange], requirements: KnownRequirements) -> list[ChangeStep]:
    """Return the changes as steps, in an order in which every prefix fits together.

    X needs Y when X's new release does not accept Y's old one, or when Y's old release does not accept X's new one.
    Packages that need one another are one step.
    """
    by_name = {change.name: change for change in changes}
    needs = {change.name: _required_changes(change, by_name, requirements) for change in changes}
    all_needs = {name: _transitive_needs(name, needs) for name in needs}
    groups: dict[frozenset[str], list[PackageChange]] = {}
    for name, change in by_name.items():
        ring = frozenset(other for other in all_needs[name] if name in all_needs[other])
        groups.setdefault(ring, []).append(change)
    ordered = sorted(groups.items(), key=lambda item: (len(all_needs[item[1][0].name]), min(item[0])))
    index = {name: number for number, (names, _) in enumerate(ordered) for name in names}
    return [
        ChangeStep(
            changes=tuple(sorted(group)),
            needs=frozenset(index[name] for name in all_needs[group[0].name]) - {number},
        )
        for number, (_, group) in enumerate(ordered)
    ]


def _required_changes(
    change: PackageChange, by_name: Mapping[str, PackageChange], requirements: KnownRequirements
) -> set[str]:
    """Return the packages that have to change when this one does."""
    required = requirements.get((change.name, change.new), {}) if change.new else {}
    names = {
        name
        for name, spec in required.items()
        if (other := by_name.get(name)) and _accepts(spec, other.new) and not _accepts(spec, other.old)
    }
    for name, other in by_name.items():
        spec = requirements.get((name, other.old), {}).get(change.name) if other.old else None
        if name != change.name and spec is not None and _accepts(spec, change.old) and not _accepts(spec, change.new):
            names.add(name)
    return names - {change.name}


def _accepts(spec: SpecifierSet, version: str | None) -> bool:
    return version is not None and spec.contains(version, prereleases=True)


def _transitive_needs(start: str, needs: Mapping[str, set[str]]) -> frozenset[str]:
    """Return the packages that change with this one, itself included."""
    reached, todo = {start}, [start]
    while todo:
        new = needs[todo.pop()] - reached
        reached |= new
        todo += new
    return frozenset(reached)


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


class _LimitReachedError(Exception):
    """The search has made as many environments as it may."""


def bisect_locks(
    good: LockVersions, bad: LockVersions, requirements: KnownRequirements, tester: EnvironmentTester, *, most: int = 30
) -> BisectResult:
    """Find the changes that turn the good lock bad, with at most `most` environments, never twice the same one."""
    ordered = order_changes(list_package_changes(good, bad), requirements)
    tested = _TestedSteps(ordered, lambda steps: tester.outcome(mix_locks(good, _changes_of(ordered, steps))), most)
    note, steps, proven = "", frozenset[int](), False
    try:
        steps, note, proven = _search_steps(tested)
    except _LimitReachedError:
        steps, note = tested.suspects, f"stopped after {most} environments: it is among these"
    return BisectResult(
        culprits=tuple(_changes_of(ordered, steps)),
        along=tuple(_changes_of(ordered, _required_steps(ordered, steps) - steps)),
        proven=proven,
        environments=len(tested.outcomes),
        changed=sum(len(step.changes) for step in ordered),
        note=note,
    )


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

    def occurred(self, outcome: EnvironmentOutcome) -> bool:
        return outcome in self.outcomes.values()


def _search_steps(tested: _TestedSteps) -> tuple[frozenset[int], str, bool]:
    """Return the culprit steps, a note, and whether they were proven to be it."""
    nothing, everything = frozenset[int](), frozenset(range(len(tested.ordered)))
    if not everything:
        return nothing, "the locks are the same: it is not the packages", False
    culprits, high, ambiguous = nothing, len(tested.ordered), False
    while True:
        low, high = _find_edge(tested, high, culprits)
        culprits |= set(range(low, high))
        ambiguous |= high - low > 1
        tested.suspects = culprits
        if tested(culprits) is EnvironmentOutcome.BAD:
            break
        if (
            not tested.occurred(EnvironmentOutcome.BAD)
            and (outcome := tested(everything)) is not EnvironmentOutcome.BAD
        ):
            return nothing, _explain_bad_lock(outcome), False
        if low == 0:  # all of the bad lock is here again, and it is not bad
            return culprits, "the same lock was first bad and then not: the command's answer is not stable", False
        high = low
    if not tested.occurred(EnvironmentOutcome.GOOD) and (outcome := tested(nothing)) is not EnvironmentOutcome.GOOD:
        problem = "fails as well" if outcome is EnvironmentOutcome.BAD else "cannot be tried"
        return nothing, f"the good lock {problem}: it is not what changed between the two", False
    note = "no mix of these could be tried, so they are not told apart" if ambiguous else ""
    return culprits, note, not ambiguous


def _explain_bad_lock(outcome: EnvironmentOutcome) -> str:
    """Return why there is no culprit when the bad lock itself is not bad."""
    if outcome is EnvironmentOutcome.GOOD:
        return "the bad lock passes here: it is not the packages, or not on this machine"
    return "the bad lock cannot be tried here, so nothing is known"


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


def _required_steps(ordered: Sequence[ChangeStep], steps: frozenset[int]) -> frozenset[int]:
    return frozenset(number for step in steps for number in ordered[step].needs)


def _changes_of(ordered: Sequence[ChangeStep], steps: frozenset[int]) -> list[PackageChange]:
    return sorted(change for step in steps for change in ordered[step].changes)
