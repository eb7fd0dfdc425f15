"""What a run would do, decided before anything is done. Pure: locks, records and what is at hand in, a `Plan` out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from knowngood.building.record import Record
from knowngood.building.shape import Shape
from knowngood.locks.lock import Layer

Key = tuple[str, str]
"""A layer's name and its making (`Shape.making`): the same key, the same bytes."""


class Action(StrEnum):
    """What is done for a cell or a layer."""

    BUILD = "build"
    REUSE = "reuse"
    LOCK = "lock"
    """Its lock has to be made first; what is built then is not known before."""
    LEAVE = "leave"
    """Its image stands in a registry and was seen green: nothing is built, and nothing pulled."""
    LACKS = "lacks"
    """Something is missing on this machine that no run can make."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A cell as planning needs it: its lock and shape, or why it has none."""

    cell: str
    layers: tuple[Layer, ...] = ()
    shape: Shape | None = None
    unlocked: str = ""
    """Why it has to be locked first."""
    lacks: str = ""
    """What this machine lacks for it."""
    stands: str = ""
    """Where its image stands in a registry, proven."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What is at hand already."""

    images: frozenset[str] = frozenset()
    """The inputs of the images in the engine."""
    layers: frozenset[Key] = frozenset()
    """The layers of those images."""
    bases: frozenset[str] = frozenset()
    """Digests of the bases in the cache."""
    records: tuple[Record, ...] = ()
    """Of images that were ever built: what layers weigh."""


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """A layer and what is done about it, once for all cells that have it."""

    name: str
    action: Action
    cells: tuple[str, ...]
    """The cells of this plan that have it."""
    download: int
    """Bytes of wheels that are fetched for it."""
    size: int | None
    """Bytes in a registry; `None` when it was never built."""

    @property
    def shared(self) -> bool:
        """Whether more than one cell of the plan has it."""
        return len(self.cells) > 1


@dataclass(frozen=True, kw_only=True)
class CellPlan:
    """A cell and what is done about it."""

    cell: str
    action: Action
    note: str
    layers: tuple[str, ...]
    download: int
    """Bytes fetched when it is built after the cells before it."""
    adds: int | None
    """Bytes in a registry of the layers that no cell before it has; `None` when one of them was never built."""
    only: tuple[str, ...]
    """The layers that no other cell of the whole matrix has."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Cells and layers in the order in which they are built."""

    cells: tuple[CellPlan, ...]
    layers: tuple[LayerPlan, ...]
    bases: Mapping[str, Action] = field(default_factory=dict)
    """What is done about the base of each digest."""

    @property
    def download(self) -> int:
        """Bytes of wheels that the whole plan fetches."""
        return sum(layer.download for layer in self.layers)

    @property
    def size(self) -> tuple[int, int]:
        """Bytes that the layers to be built take in a registry, and how many of them have no known size."""
        return known([layer.size for layer in self.layers if layer.action is Action.BUILD])

    @property
    def reused(self) -> tuple[int, int]:
        """The same, of the layers that are at hand."""
        return known([layer.size for layer in self.layers if layer.action is Action.REUSE])

    def document(self) -> dict[str, Any]:
        """The plan for `--json`."""
        return {
            "cells": [{**vars(cell), "action": str(cell.action)} for cell in self.cells],
            "layers": [{**vars(layer), "action": str(layer.action)} for layer in self.layers],
            "bases": {digest: str(action) for digest, action in self.bases.items()},
            "download": self.download,
            "built": {"bytes": self.size[0], "unknown": self.size[1]},
            "reused": {"bytes": self.reused[0], "unknown": self.reused[1]},
        }


def plan(wanted: Sequence[Wanted], held: Holdings, matrix: Iterable[Wanted] = ()) -> Plan:
    """The plan for some cells; `matrix` are the other cells, which may share layers with them."""
    layers = _layers(wanted, held)
    everywhere: dict[Key, set[str]] = defaultdict(set)
    for item in [*wanted, *matrix]:
        for key in _keys(item):
            everywhere[key].add(item.cell)
    done: set[Key] = set()
    cells = []
    for item in order(wanted, held):
        action = _action(item, held)
        new = [layers[key] for key in _keys(item) if key not in done and key in layers]
        built = [layer for layer in new if layer.action is Action.BUILD] if action is Action.BUILD else []
        adds, unknown = known([layer.size for layer in new])
        cells.append(
            CellPlan(
                cell=item.cell,
                action=action,
                note=item.lacks or item.unlocked or item.stands or item.note,
                layers=tuple(name for name, _ in _keys(item)),
                download=sum(layer.download for layer in built),
                adds=None if unknown or item.shape is None else adds,
                only=tuple(key[0] for key in _keys(item) if len(everywhere[key]) == 1),
            )
        )
        done |= set(_keys(item))
    bases = {
        item.shape.base: Action.REUSE if item.shape.base in held.bases else Action.BUILD
        for item in wanted
        if item.shape and _action(item, held) is Action.BUILD
    }
    return Plan(cells=tuple(cells), layers=tuple(_sorted(layers.values())), bases=bases)


def order(wanted: Sequence[Wanted], held: Holdings) -> list[Wanted]:
    """Shared layers first: the cell that builds most for others comes first, one with nothing to do last."""
    users: dict[Key, int] = defaultdict(int)
    for item in wanted:
        for key, _ in to_build(item, held):
            users[key] += 1

    def shared(item: Wanted) -> int:
        return sum(size * (users[key] - 1) for key, size in to_build(item, held))

    ranks = {Action.LOCK: 0, Action.BUILD: 1, Action.REUSE: 2, Action.LEAVE: 3, Action.LACKS: 4}
    return sorted(wanted, key=lambda item: (ranks[_action(item, held)], -shared(item)))


def to_build(item: Wanted, held: Holdings) -> list[tuple[Key, int]]:
    """The layers of a cell's lock that are not at hand, with the bytes of their wheels."""
    if item.shape is None or item.stands or item.shape.inputs in held.images:
        return []
    keys = [((layer.name, item.shape.making), layer.size) for layer in item.layers]
    return [(key, size) for key, size in keys if key not in held.layers]


def known(sizes: Iterable[int | None]) -> tuple[int, int]:
    """The sum of the known sizes, and how many are unknown."""
    listed = list(sizes)
    return sum(size for size in listed if size is not None), listed.count(None)


def _action(item: Wanted, held: Holdings) -> Action:
    if item.lacks:
        return Action.LACKS
    if item.stands:
        return Action.LEAVE
    if item.shape is None:
        return Action.LOCK
    return Action.REUSE if item.shape.inputs in held.images else Action.BUILD


def _keys(item: Wanted) -> list[Key]:
    if item.shape is None:
        return []
    names = item.shape.layers(tuple(layer.name for layer in item.layers))
    return [(name, item.shape.making) for name in names]


def _layers(wanted: Sequence[Wanted], held: Holdings) -> dict[Key, LayerPlan]:
    sizes = _sizes(held.records)
    layers: dict[Key, LayerPlan] = {}
    for item in wanted:
        if item.shape is None or item.lacks or item.stands:
            continue
        wheels = {layer.name: layer.size for layer in item.layers}
        for key in _keys(item):
            name = key[0]
            at_hand = item.shape.inputs in held.images or key in held.layers
            at_hand = at_hand or (name.startswith("base-") and item.shape.base in held.bases)
            before = layers.get(key)
            reuse = at_hand or (before is not None and before.action is Action.REUSE)
            layers[key] = LayerPlan(
                name=name,
                action=Action.REUSE if reuse else Action.BUILD,
                cells=(*(before.cells if before else ()), item.cell),
                download=0 if reuse else wheels.get(name, 0),
                size=sizes.get(name),
            )
    return layers


def _sizes(records: Iterable[Record]) -> dict[str, int]:
    """What each layer weighed when it was last built; the layers of a pulled base count as one."""
    sizes: dict[str, int] = {}
    for record in records:
        own: dict[str, int] = defaultdict(int)
        for layer in record.layers:
            own[layer.name.partition(".")[0] if layer.name.startswith("base-") else layer.name] += layer.size
        sizes |= own
    return sizes


def _sorted(layers: Iterable[LayerPlan]) -> list[LayerPlan]:
    """What is built before what is reused; shared layers first, the large ones before the small."""
    weight = {layer: layer.size if layer.size is not None else layer.download for layer in layers}
    return sorted(
        weight, key=lambda layer: (layer.action is Action.REUSE, -len(layer.cells), -weight[layer], layer.name)
    )
