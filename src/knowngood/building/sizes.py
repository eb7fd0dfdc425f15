"""What the matrix weighs, from the committed records: each blob once, as a registry stores it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from knowngood.building.record import Record


@dataclass(frozen=True, kw_only=True)
class CellSize:
    """What one cell weighs."""

    cell: str
    size: int
    """Bytes of its image in a registry that has nothing of it."""
    own: int
    """Bytes of the layers that no other cell has: what the registry saves without this cell."""


@dataclass(frozen=True, kw_only=True)
class LayerSize:
    """What one layer weighs, and who has it."""

    name: str
    digest: str
    size: int
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The whole of it."""

    cells: tuple[CellSize, ...]
    layers: tuple[LayerSize, ...]
    """The largest first."""
    unique: int
    """Bytes that a registry with all these images stores."""

    @property
    def apart(self) -> int:
        """Bytes if no cell shared anything."""
        return sum(cell.size for cell in self.cells)


def measure(records: Sequence[Record]) -> Sizes:
    """The sizes of these cells and their layers."""
    blobs: dict[str, int] = {}
    users: dict[str, list[str]] = defaultdict(list)
    names: dict[str, str] = {}
    for record in records:
        for blob in (record.manifest, record.config, *record.layers):
            blobs[blob.digest] = blob.size
        for layer in record.layers:
            names.setdefault(layer.digest, layer.name)
            if record.cell not in users[layer.digest]:
                users[layer.digest].append(record.cell)
    layers = [
        LayerSize(name=name, digest=digest, size=blobs[digest], cells=tuple(users[digest]))
        for digest, name in names.items()
    ]
    cells = [CellSize(cell=record.cell, size=record.size, own=_own(record, users)) for record in records]
    return Sizes(
        cells=tuple(cells),
        layers=tuple(sorted(layers, key=lambda layer: (-layer.size, layer.name))),
        unique=sum(blobs.values()),
    )


def _own(record: Record, users: Mapping[str, Sequence[str]]) -> int:
    own = {layer.digest: layer.size for layer in record.layers if len(users[layer.digest]) == 1}
    return record.manifest.size + record.config.size + sum(own.values())


def too_large(sizes: Sizes, budget: int) -> Iterable[tuple[CellSize, LayerSize]]:
    """The cells above the budget, each with its largest layer."""
    for cell in sizes.cells:
        if cell.size > budget:
            yield cell, next(layer for layer in sizes.layers if cell.cell in layer.cells)
