"""From one lock to another: which packages changed, and which of them only move together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

Versions = Mapping[str, str]
"""Canonical name -> version: a lock, as far as bisecting is concerned."""

Requires = Mapping[tuple[str, str], Mapping[str, SpecifierSet]]
"""(name, version) -> what it requires; a release that is not in it requires nothing that is known."""


@dataclass(frozen=True, kw_only=True, order=True)
class Move:
    """One package that is not the same in both locks."""

    name: str
    old: str | None
    """`None`: the good lock does not have it."""
    new: str | None
    """`None`: the bad lock does not have it."""

    def __str__(self) -> str:
        return f"{self.name} {self.old or 'absent'} -> {self.new or 'absent'}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """Packages that move together, and the earlier steps without which they cannot be moved."""

    moves: tuple[Move, ...]
    needs: frozenset[int] = frozenset()
    """Indexes of steps, this one not among them, with all that those need."""


def moves(good: Versions, bad: Versions) -> list[Move]:
    """What differs, by name."""
    names = sorted(good.keys() | bad.keys())
    found = (Move(name=name, old=good.get(name), new=bad.get(name)) for name in names)
    return [move for move in found if move.old != move.new]


def mixed(good: Versions, chosen: Sequence[Move]) -> dict[str, str]:
    """The good lock with some packages moved."""
    made = dict(good)
    for move in chosen:
        if move.new is None:
            made.pop(move.name, None)
        else:
            made[move.name] = move.new
    return made


def steps(found: Sequence[Move], requires: Requires) -> list[Step]:
    """The moves in an order in which every beginning of it fits together: what is needed comes before who needs it.

    X needs Y when X's new release does not take Y's old one, or Y's old release does not take X's new one. Those that
    need one another are one step.
    """
    by_name = {move.name: move for move in found}
    needs = {move.name: _needs(move, by_name, requires) for move in found}
    reach = {name: _reach(name, needs) for name in needs}
    together: dict[frozenset[str], list[Move]] = {}
    for name, move in by_name.items():
        together.setdefault(frozenset(other for other in reach[name] if name in reach[other]), []).append(move)
    ordered = sorted(together.items(), key=lambda item: (len(reach[item[1][0].name]), min(item[0])))
    place = {name: number for number, (names, _) in enumerate(ordered) for name in names}
    return [
        Step(
            moves=tuple(sorted(group)),
            needs=frozenset(place[name] for name in reach[group[0].name]) - {number},
        )
        for number, (_, group) in enumerate(ordered)
    ]


def _needs(move: Move, by_name: Mapping[str, Move], requires: Requires) -> set[str]:
    """Who has to move when this one does."""
    wanted = requires.get((move.name, move.new), {}) if move.new else {}
    found = {
        name
        for name, spec in wanted.items()
        if (other := by_name.get(name)) and _takes(spec, other.new) and not _takes(spec, other.old)
    }
    for name, other in by_name.items():
        spec = requires.get((name, other.old), {}).get(move.name) if other.old else None
        if name != move.name and spec is not None and _takes(spec, move.old) and not _takes(spec, move.new):
            found.add(name)
    return found - {move.name}


def _takes(spec: SpecifierSet, version: str | None) -> bool:
    return version is not None and spec.contains(version, prereleases=True)


def _reach(start: str, needs: Mapping[str, set[str]]) -> frozenset[str]:
    """The moves that this one brings with it, itself among them."""
    seen, todo = {start}, [start]
    while todo:
        for name in needs[todo.pop()] - seen:
            seen.add(name)
            todo.append(name)
    return frozenset(seen)
