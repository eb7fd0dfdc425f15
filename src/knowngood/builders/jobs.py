"""What a fleet builds, in which order: what several cells have in common once, then each cell. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from knowngood.builders import derive
from knowngood.building import planning, schedule
from knowngood.building.planning import Holdings, Key, Wanted
from knowngood.building.schedule import DISK_PER_BYTE, LARGE, MEMORY_TO_BUILD, Room, Task


@dataclass(frozen=True, kw_only=True)
class LayerJob:
    """Layers that are built before the cells that have them."""

    cell: str
    """A cell that has all of them: its Dockerfile makes them."""
    keys: tuple[Key, ...]
    after: frozenset[Key] = frozenset()
    size: int = 0
    """Bytes of their wheels."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layers."""
        return tuple(name for name, _ in self.keys)

    @property
    def task(self) -> Task:
        """As it is scheduled."""
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        return Task(
            cell=f"{self.names[0]}{more}",
            need=Room(memory=MEMORY_TO_BUILD, disk=DISK_PER_BYTE * self.size),
            makes=frozenset(self.keys),
            after=self.after,
        )


def ground(item: Wanted) -> tuple[Key, ...]:
    """The layers that every cell of one making stands on: the empty environment, and the suite."""
    if item.shape is None:
        return ()
    names = item.shape.layers(())
    return tuple((name, item.shape.making) for name in names if derive.is_ground(name))


def keys(item: Wanted) -> tuple[Key, ...]:
    """All layers that builders share of a cell."""
    if item.shape is None:
        return ()
    return (*ground(item), *((layer.name, item.shape.making) for layer in item.layers))


def shared(wanted: Sequence[Wanted], held: Holdings, has: Callable[[Wanted], bool]) -> list[LayerJob]:
    """The layers that several cells want and nobody has, in the order in which they are best begun.

    A large one is a job of its own, so that builders can share the work; small ones that the same cells want are one.
    `has` tells whether a cell's Dockerfile has the stages that make them.
    """
    users: dict[Key, list[Wanted]] = defaultdict(list)
    sizes: dict[Key, int] = {}
    for item in wanted:
        missing = dict(planning.to_build(item, held))
        if item.shape is None or item.shape.inputs in held.images or not has(item):
            continue
        for key in keys(item):
            if key in missing or (key not in held.layers and key in ground(item)):
                users[key].append(item)
                sizes[key] = missing.get(key, 0)
    common = {key: found for key, found in users.items() if len(found) > 1}
    below = {key for found in common.values() for item in found for key in ground(item)} & common.keys()
    groups: dict[tuple[object, ...], list[Key]] = defaultdict(list)
    for key, found in common.items():
        alone = key[0] if sizes[key] >= LARGE else ""
        groups[(key in below, alone, *(item.cell for item in found))].append(key)
    jobs = [
        LayerJob(
            cell=common[group[0]][0].cell,
            keys=tuple(group),
            after=frozenset() if group[0] in below else frozenset(set(ground(common[group[0]][0])) & below),
            size=sum(sizes[key] for key in group),
        )
        for group in groups.values()
    ]
    return sorted(jobs, key=lambda job: (bool(job.after), -job.size, job.names))


def spare(
    wanted: Sequence[Wanted], held: Holdings, made: frozenset[Key], has: Callable[[Wanted], bool]
) -> list[LayerJob]:
    """The large layers that one cell alone wants, for builders that have nothing else to do: the largest first."""
    found = [
        LayerJob(cell=item.cell, keys=(key,), after=frozenset(ground(item)) & made, size=size)
        for item in wanted
        if item.shape and item.shape.inputs not in held.images and has(item)
        for key, size in planning.to_build(item, held)
        if size >= LARGE and key not in made
    ]
    return sorted(found, key=lambda job: -job.size)


def cell_task(item: Wanted, held: Holdings, made: frozenset[Key], *, prove: bool) -> Task:
    """A cell, which waits for what jobs make of it; what is left is its own, and keeps nobody waiting."""
    found = schedule.task(item, held, prove=prove)
    return replace(found, makes=found.makes - made, after=frozenset(keys(item)) & made)
