"""The plan for several cells: what is built, in which order, and how much it downloads. Pure.

In: each cell with its lock and shape, and what exists already. Out: a `MatrixPlan`, before anything is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from knowngood.core.image_record import ImageRecord, ImageShape
from knowngood.lock.cell_lock import Layer

LayerKey = tuple[str, str]
"""A layer's name and its `ImageShape.layer_inputs`: layers with the same key have the same bytes."""


class PlanAction(StrEnum):
    """What is done for a cell or a layer."""

    BUILD = "build"
    REUSE = "reuse"
    LOCK = "lock"
    """Its lock has to be made first. What is built then is not known yet."""
    LACKS = "lacks"
    """This machine lacks something that no run can make."""
    REFUSED = "refused"
    """Its committed lock is damaged; `knowngood lock` makes it again."""


@dataclass(frozen=True, kw_only=True)
class PlanInput:
    """A cell as planning needs it: its lock and shape, or why it has none."""

    cell: str
    layers: tuple[Layer, ...] = ()
    shape: ImageShape | None = None
    lock_problem: str = ""
    """Why it has to be locked first; empty for a current lock."""
    lock_defect: str = ""
    """What is damaged in its lock; empty for a sound one."""
    missing_wheel: str = ""
    """Why a wheel that it needs is missing on this machine; empty when none is."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What exists already, so that it is not built again."""

    images: frozenset[str] = frozenset()
    """The input digests of the images in the engine."""
    layers: frozenset[LayerKey] = frozenset()
    """The layers of those images."""
    bases: frozenset[str] = frozenset()
    """Digests of the bases in the cache."""
    records: tuple[ImageRecord, ...] = ()
    """Records of images that were built at any time. They give the sizes of layers."""


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """A layer and what is done for it, once for all cells that have it."""

    name: str
    action: PlanAction
    cells: tuple[str, ...]
    """The cells of this plan that have it."""
    download: int
    """Bytes of wheels that are downloaded for it."""
    size: int | None
    """Bytes in a registry; `None` when it was never built."""

    @property
    def shared(self) -> bool:
        """Whether more than one cell of the plan has it."""
        return len(self.cells) > 1


@dataclass(frozen=True, kw_only=True)
class CellPlan:
    """A cell and what is done for it."""

    cell: str
    action: PlanAction
    note: str
    layers: tuple[str, ...]
    download: int
    """Bytes that are downloaded when it is built after the cells before it."""
    adds: int | None
    """Bytes in a registry of the layers that no cell before it has; `None` when one of them was never built."""
    only: tuple[str, ...]
    """The layers that no other cell of the whole matrix has."""


@dataclass(frozen=True, kw_only=True)
class MatrixPlan:
    """Cells and layers in the order in which they are built."""

    cells: tuple[CellPlan, ...]
    layers: tuple[LayerPlan, ...]
    bases: Mapping[str, PlanAction] = field(default_factory=dict)
    """What is done for each base, by its digest."""

    @property
    def download(self) -> int:
        """Bytes of wheels that the whole plan downloads."""
        return sum(layer.download for layer in self.layers)

    @property
    def size(self) -> tuple[int, int]:
        """Bytes that the layers to be built take in a registry, and how many of them have no known size."""
        return sum_known_sizes([layer.size for layer in self.layers if layer.action is PlanAction.BUILD])

    @property
    def reused(self) -> tuple[int, int]:
        """Bytes that the existing layers take in a registry, and how many of them have no known size."""
        return sum_known_sizes([layer.size for layer in self.layers if layer.action is PlanAction.REUSE])

    def document(self) -> dict[str, Any]:
        """Return the plan as a document for `--json`."""
        return {
            "cells": [{**vars(cell), "action": str(cell.action)} for cell in self.cells],
            "layers": [{**vars(layer), "action": str(layer.action)} for layer in self.layers],
            "bases": {digest: str(action) for digest, action in self.bases.items()},
            "download": self.download,
            "built": {"bytes": self.size[0], "unknown": self.size[1]},
            "reused": {"bytes": self.reused[0], "unknown": self.reused[1]},
        }


def plan_matrix(inputs: Sequence[PlanInput], holdings: Holdings, others: Iterable[PlanInput] = ()) -> MatrixPlan:
    """Return the plan for some cells; `others` are the other cells of the matrix, which may share layers with them."""
    layers = _plan_layers(inputs, holdings)
    cells_with: dict[LayerKey, set[str]] = defaultdict(set)
    for item in [*inputs, *others]:
        for key in _layer_keys(item):
            cells_with[key].add(item.cell)
    planned: set[LayerKey] = set()
    cells = []
    for item in order_cells(inputs, holdings):
        action = _cell_action(item, holdings)
        new = [layers[key] for key in _layer_keys(item) if key not in planned and key in layers]
        built = [layer for layer in new if layer.action is PlanAction.BUILD] if action is PlanAction.BUILD else []
        adds, unknown = sum_known_sizes([layer.size for layer in new])
        cells.append(
            CellPlan(
                cell=item.cell,
                action=action,
                note=item.missing_wheel or item.lock_defect or item.lock_problem or item.note,
                layers=tuple(name for name, _ in _layer_keys(item)),
                download=sum(layer.download for layer in built),
                adds=None if unknown or item.shape is None else adds,
                only=tuple(key[0] for key in _layer_keys(item) if len(cells_with[key]) == 1),
            )
        )
        planned |= set(_layer_keys(item))
    bases = {
        item.shape.base: PlanAction.REUSE if item.shape.base in holdings.bases else PlanAction.BUILD
        for item in inputs
        if item.shape and _cell_action(item, holdings) is PlanAction.BUILD
    }
    return MatrixPlan(cells=tuple(cells), layers=tuple(_sort_layers(layers.values())), bases=bases)


def order_cells(inputs: Sequence[PlanInput], holdings: Holdings) -> list[PlanInput]:
    """Return the cells in building order: first the cell that builds most for others, last those with nothing to do."""
    users: dict[LayerKey, int] = defaultdict(int)
    for item in inputs:
        for key, _ in layers_to_build(item, holdings):
            users[key] += 1

    def bytes_for_others(item: PlanInput) -> int:
        return sum(size * (users[key] - 1) for key, size in layers_to_build(item, holdings))

    ranks = {PlanAction.LOCK: 0, PlanAction.REFUSED: 0, PlanAction.BUILD: 1, PlanAction.REUSE: 2, PlanAction.LACKS: 3}
    return sorted(inputs, key=lambda item: (ranks[_cell_action(item, holdings)], -bytes_for_others(item)))


def layers_to_build(item: PlanInput, holdings: Holdings) -> list[tuple[LayerKey, int]]:
    """Return the layers of a cell's lock that do not exist yet, with the bytes of their wheels."""
    if item.shape is None or item.shape.inputs in holdings.images:
        return []
    keys = [((layer.name, item.shape.layer_inputs), layer.size) for layer in item.layers]
    return [(key, size) for key, size in keys if key not in holdings.layers]


def sum_known_sizes(sizes: Iterable[int | None]) -> tuple[int, int]:
    """Return the sum of the known sizes, and how many are unknown."""
    sizes = list(sizes)
    return sum(size for size in sizes if size is not None), sizes.count(None)


def _cell_action(item: PlanInput, holdings: Holdings) -> PlanAction:
    if item.missing_wheel:
        return PlanAction.LACKS
    if item.lock_defect:
        return PlanAction.REFUSED
    if item.shape is None:
        return PlanAction.LOCK
    return PlanAction.REUSE if item.shape.inputs in holdings.images else PlanAction.BUILD


def _layer_keys(item: PlanInput) -> list[LayerKey]:
    if item.shape is None:
        return []
    names = item.shape.layer_names(tuple(layer.name for layer in item.layers))
    return [(name, item.shape.layer_inputs) for name in names]


def _plan_layers(inputs: Sequence[PlanInput], holdings: Holdings) -> dict[LayerKey, LayerPlan]:
    sizes = _recorded_sizes(holdings.records)
    layers: dict[LayerKey, LayerPlan] = {}
    for item in inputs:
        if item.shape is None or item.missing_wheel:
            continue
        wheels = {layer.name: layer.size for layer in item.layers}
        for key in _layer_keys(item):
            name = key[0]
            exists = item.shape.inputs in holdings.images or key in holdings.layers
            exists = exists or (name.startswith("base-") and item.shape.base in holdings.bases)
            earlier = layers.get(key)
            reuse = exists or (earlier is not None and earlier.action is PlanAction.REUSE)
            layers[key] = LayerPlan(
                name=name,
                action=PlanAction.REUSE if reuse else PlanAction.BUILD,
                cells=(*(earlier.cells if earlier else ()), item.cell),
                download=0 if reuse else wheels.get(name, 0),
                size=sizes.get(name),
            )
    return layers


def _recorded_sizes(records: Iterable[ImageRecord]) -> dict[str, int]:
    """Return the size of each layer when it was last built; the layers of a pulled base count as one."""
    sizes: dict[str, int] = {}
    for record in records:
        record_sizes: dict[str, int] = defaultdict(int)
        for layer in record.layers:
            record_sizes[layer.name.partition(".")[0] if layer.name.startswith("base-") else layer.name] += layer.size
        sizes |= record_sizes
    return sizes


def _sort_layers(layers: Iterable[LayerPlan]) -> list[LayerPlan]:
    """Return the layers that are built, then those that are reused; shared ones first, large ones before small ones."""
    weight = {layer: layer.size if layer.size is not None else layer.download for layer in layers}
    return sorted(
        weight, key=lambda layer: (layer.action is PlanAction.REUSE, -len(layer.cells), -weight[layer], layer.name)
    )
