"""The size of the matrix in a registry, which stores each blob once; from the committed records. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from knowngood.core.image_record import ImageRecord


@dataclass(frozen=True, kw_only=True)
class CellSize:
    """The size of one cell's image."""

    cell: str
    size: int
    """Bytes of its image in an empty registry."""
    own: int
    """Bytes of the blobs that no other cell has, which the registry would save without this cell."""


@dataclass(frozen=True, kw_only=True)
class LayerSize:
    """The size of one layer, and the cells that have it."""

    name: str
    digest: str
    size: int
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MatrixSizes:
    """The sizes of all cells and layers."""

    cells: tuple[CellSize, ...]
    layers: tuple[LayerSize, ...]
    """The largest first."""
    unique: int
    """Bytes that a registry with all these images stores."""

    @property
    def apart(self) -> int:
        """Bytes that the images would take if no cell shared a layer."""
        return sum(cell.size for cell in self.cells)


def measure_images(records: Sequence[ImageRecord]) -> MatrixSizes:
    """Return the sizes of these cells and their layers."""
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
    cells = [CellSize(cell=record.cell, size=record.size, own=_own_size(record, users)) for record in records]
    return MatrixSizes(
        cells=tuple(cells),
        layers=tuple(sorted(layers, key=lambda layer: (-layer.size, layer.name))),
        unique=sum(blobs.values()),
    )


def _own_size(record: ImageRecord, users: Mapping[str, Sequence[str]]) -> int:
    own = {layer.digest: layer.size for layer in record.layers if len(users[layer.digest]) == 1}
    return record.manifest.size + record.config.size + sum(own.values())


def find_oversized_cells(sizes: MatrixSizes, budget: int) -> Iterable[tuple[CellSize, LayerSize]]:
    """Yield the cells larger than `budget` bytes, each with its largest layer."""
    for cell in sizes.cells:
        if cell.size > budget:
            yield cell, next(layer for layer in sizes.layers if cell.cell in layer.cells)
