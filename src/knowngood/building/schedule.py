"""Which task starts next: as many at once as memory and disk hold, none that another is working for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from knowngood.building.planning import Holdings, Key, Wanted, to_build

MEMORY_TO_BUILD = 2 * 10**9
"""Bytes that a build with many layers takes at its most."""
MEMORY_TO_PROVE = 4 * 10**9
"""Bytes that the suite takes at its most."""
DISK_PER_BYTE = 7
"""Bytes on disk for each byte of a wheel while its layer is made: unpacked three times over, and compressed."""
DISK_AT_LEAST = 3
"""The same for what has to be there in the end; a build that was stopped may have the rest already."""
LARGE = 50 * 10**6
"""Bytes of wheels from which a layer is worth waiting for."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a machine has, or a task takes: bytes."""

    memory: int
    disk: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """A cell, or layers, to be worked on."""

    cell: str
    need: Room
    makes: frozenset[Key] = frozenset()
    """The large layers that it builds."""
    after: frozenset[Key] = frozenset()
    """Layers that others build for it: it begins when they are there."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why no task starts now, for people."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A task that cannot be done on this machine, however long it waits."""

    task: Task
    reason: str


def task(item: Wanted, held: Holdings, *, prove: bool) -> Task:
    """A cell with what it needs, estimated from what its lock weighs."""
    missing = to_build(item, held)
    memory = MEMORY_TO_BUILD if missing or item.shape is None else 0
    return Task(
        cell=item.cell,
        need=Room(
            memory=max(memory, MEMORY_TO_PROVE if prove else 0),
            disk=DISK_PER_BYTE * sum(size for _, size in missing),
        ),
        makes=frozenset(key for key, size in missing if size >= LARGE),
    )


def choose(
    waiting: Sequence[Task],
    running: Collection[Task],
    free: Room,
    *,
    jobs: int,
    others: Collection[Task] = (),
) -> Task | Refusal | Wait:
    """The task to start now. `free` is what the machine has left; running tasks may not have taken theirs yet.

    `others` are at work, or wait, elsewhere: what they make is not made here.
    """
    if len(running) >= jobs:
        return Wait(reason=f"{jobs} at once")
    reasons = []
    for item in waiting:
        makers = [other.cell for other in (*running, *others) if other.makes & item.makes]
        first = [other.cell for other in (*waiting, *running, *others) if other.makes & item.after]
        if makers or first:
            reasons.append(f"{item.cell} waits for layers that {(makers or first)[0]} builds")
        elif not running:
            if item.need.disk * DISK_AT_LEAST > free.disk * DISK_PER_BYTE:
                return Refusal(task=item, reason=_too_little(item, free))
            return item
        elif reason := _no_room(item, running, free):
            reasons.append(reason)
        else:
            return item
    return Wait(reason=reasons[0] if reasons else "nothing is left to start")


def _no_room(item: Task, running: Collection[Task], free: Room) -> str | None:
    for name in ("memory", "disk"):
        taken = sum(getattr(other.need, name) for other in running)
        left = max(0, getattr(free, name) - taken)
        if getattr(item.need, name) > left:
            need = getattr(item.need, name) / 1e9
            return f"{item.cell} waits for {name}: it takes up to {need:.0f} GB, {left / 1e9:.0f} GB are left"
    return None


def _too_little(item: Task, free: Room) -> str:
    return (
        f"{item.cell} takes up to {item.need.disk / 1e9:.0f} GB of disk while it is built, {free.disk / 1e9:.0f} GB "
        "are free; make space (`docker system prune`, `knowngood engine down`), or select another cell"
    )
