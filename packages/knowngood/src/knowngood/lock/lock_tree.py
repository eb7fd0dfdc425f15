"""The committed folder `docker/`: the lock of each cell, and the layers that locks share.

- `cells/<id>/cell.json`: which layers a cell has, in their order
- `cells/<id>/image.json`: the record of its image (`core.image_record`)
- `layers/<name>/requirements.txt`: the pins of a layer
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.core import cell as cells
from knowngood.core import data_files, image_record, json_document
from knowngood.core.cell import Cell
from knowngood.core.errors import UsageError
from knowngood.core.local_files import write_atomically
from knowngood.lock import cell_lock

if TYPE_CHECKING:
    from knowngood.core.record_schema import CellLockDocument

CELL_LOCK_SCHEMA = "knowngood/cell/1"


@dataclass(frozen=True, kw_only=True)
class CellLock:
    """The whole lock of a cell."""

    cell: Cell
    base: str
    inputs: str
    """SHA-256 over what the resolver was asked; while it stays the same, so does the lock."""
    layers: tuple[cell_lock.Layer, ...]

    @property
    def distributions(self) -> list[cell_lock.Distribution]:
        """Return every distribution of all layers."""
        return [item for layer in self.layers for item in layer.distributions]

    @property
    def digest(self) -> str:
        """Return the SHA-256 that identifies the lock."""
        return cell_lock.distributions_digest(self.distributions)

    def document(self) -> dict[str, Any]:
        """Return the content of `cell.json`, which is also `/opt/knowngood/cell.json` in the image."""
        return {
            "schema": CELL_LOCK_SCHEMA,
            "id": str(self.cell),
            "axes": {str(axis): value for axis, value in self.cell.axes().items()},
            "base": self.base,
            "inputs": self.inputs,
            "lock": self.digest,
            "layers": [layer.name for layer in self.layers],
        }


def load_cell_document(path: Path) -> CellLockDocument:
    """Return the content of a `cell.json`; `InputError` with every defect, `FileNotFoundError` when there is none."""

    def parse(data: bytes) -> CellLockDocument:
        return parse_cell_document(data, str(path))

    schema = Path(image_record.__file__).with_name("record_schema.py")
    document: CellLockDocument = data_files.load_json_checked_once(path, parse, [schema])
    return document


def parse_cell_document(data: bytes, file: str) -> CellLockDocument:
    """Return the content of a `cell.json` with this name; `InputError` with every defect."""
    from knowngood.core import record_schema

    remedy = "restore it, or run `knowngood lock` again"
    return json_document.parse_json(data, file, record_schema.CellLockDocument, remedy=remedy)


class LockTree:
    """Reads and writes `docker/` below the root of a project."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "docker"

    def cell_folder(self, cell: Cell) -> Path:
        """Return the folder of the cell's Dockerfile and `cell.json`."""
        return self.folder / "cells" / str(cell)

    def locked(self) -> frozenset[str]:
        """Return the ids of the cells that have a lock, valid or not."""
        return frozenset(path.parent.name for path in (self.folder / "cells").glob("*/cell.json"))

    def recorded(self) -> frozenset[str]:
        """Return the ids of the cells of which an image was built and recorded."""
        records = (self.folder / "cells").glob(f"*/{image_record.IMAGE_RECORD_FILE}")
        return frozenset(path.parent.name for path in records)

    def load(self, cell: Cell) -> CellLock | None:
        """Return the committed lock of a cell, or `None` when it was never locked; `UsageError` when it is damaged."""
        path = self.cell_folder(cell) / "cell.json"
        if not path.exists():
            return None
        stored = load_cell_document(path)
        if stored["id"] != str(cell):
            raise UsageError(f"{path}: it is the lock of {stored['id']}; run `knowngood lock` again")
        lock = CellLock(
            cell=cells.parse_cell(stored["id"]),
            base=stored["base"],
            inputs=stored["inputs"],
            layers=tuple(self._layer(name) for name in stored["layers"]),
        )
        if lock.digest != stored["lock"]:
            raise UsageError(f"{path}: its layers were changed by hand; run `knowngood lock` again")
        return lock

    def record_path(self, cell: Cell) -> Path:
        """Return the path of the record of the cell's image."""
        return self.cell_folder(cell) / image_record.IMAGE_RECORD_FILE

    def load_record(self, cell: Cell) -> image_record.ImageRecord | None:
        """Return the committed record of the cell's image, or `None`; `UsageError` when it is damaged."""
        path = self.record_path(cell)
        return image_record.load_image_record(path) if path.exists() else None

    def _layer(self, name: str) -> cell_lock.Layer:
        path = self.folder / "layers" / name / "requirements.txt"
        try:
            text = data_files.read_data_text(path)
        except FileNotFoundError:
            raise UsageError(f"{path} is missing; restore it, or run `knowngood lock` again") from None
        distributions = cell_lock.parse_requirements(text, str(path))
        group = name.rsplit("-", 1)[0]
        if len(distributions) == 1:
            group = group.removesuffix("-" + distributions[0].version.split("+")[0])
        layer = cell_lock.Layer(group=group, distributions=distributions)
        if layer.name != name:
            raise UsageError(f"{path}: the content was changed by hand; run `knowngood lock` again")
        return layer

    def save(self, locked: CellLock) -> bool:
        """Write the layers, then the cell that names them, and return whether anything changed."""
        changed = [
            write_atomically(self.folder / "layers" / layer.name / "requirements.txt", layer.requirements())
            for layer in locked.layers
        ]
        text = json.dumps(locked.document(), indent=1) + "\n"
        changed.append(write_atomically(self.cell_folder(locked.cell) / "cell.json", text))
        return any(changed)

    def orphans(self, cells: Collection[Cell]) -> list[Path]:
        """Return the folders of cells that the matrix no longer has, and of layers that no cell names."""
        wanted = {str(cell) for cell in cells}
        named: set[str] = set()
        for cell in cells:
            locked = self.load(cell)
            named |= {layer.name for layer in locked.layers} if locked else set()
        return [
            path
            for section, keep in (("cells", wanted), ("layers", named))
            for path in sorted((self.folder / section).glob("*"))
            if path.name not in keep
        ]

    def prune(self, cells: Collection[Cell]) -> list[Path]:
        """Remove the orphans and return them."""
        orphans = self.orphans(cells)
        for path in orphans:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        return orphans
