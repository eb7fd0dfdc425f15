"""The package changes between two locks, in an order in which every prefix is a lock whose packages fit together. Pure.

What a release requires comes before it, and packages that require one another change in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    needs = {change.name: set(_required_changes(change, by_name, requirements)) for change in changes}
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
) -> dict[str, str]:
    """Return the packages that have to change when this one does, each with the requirement that says so."""
    reasons = {}
    for name, other in by_name.items():
        if name == change.name:
            continue
        spec = requirements.get((change.name, change.new), {}).get(name) if change.new else None
        if spec is not None and _accepts(spec, other.new) and not _accepts(spec, other.old):
            reasons[name] = f"{change.name} {change.new} requires {name}{spec}"
        spec = requirements.get((name, other.old), {}).get(change.name) if other.old else None
        if spec is not None and _accepts(spec, change.old) and not _accepts(spec, change.new):
            reasons.setdefault(name, f"{name} {other.old} requires {change.name}{spec}")
    return reasons


def list_ties(changes: Sequence[PackageChange], requirements: KnownRequirements) -> list[str]:
    """Return the requirements because of which some of these changes can only be made together, as sentences."""
    by_name = {change.name: change for change in changes}
    reasons = (_required_changes(change, by_name, requirements).values() for change in sorted(changes))
    return list(dict.fromkeys(reason for of_change in reasons for reason in of_change))


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
