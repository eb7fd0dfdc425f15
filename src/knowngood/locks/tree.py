"""The committed folder `docker/`: what each cell locks, and the layers that the locks share.

`cells/<id>/cell.json` (which layers, in which order), `cells/<id>/image.json` (what came out, `building.record`),
`layers/<name>/requirements.txt` (the pins).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knowngood import cell as cells
from knowngood.atomic import write_text
from knowngood.building import record
from knowngood.cell import Cell
from knowngood.errors import UsageError
from knowngood.locks import lock

SCHEMA = "knowngood/cell/1"


@dataclass(frozen=True, kw_only=True)
class CellLock:
    """A cell with its whole lock."""

    cell: Cell
    base: str
    inputs: str
    """SHA-256 over what was asked of the resolver: while it stays the same, so does the lock."""
    layers: tuple[lock.Layer, ...]

    @property
    def distributions(self) -> list[lock.Distribution]:
        """Every wheel, over all layers."""
        return [item for layer in self.layers for item in layer.distributions]

    @property
    def digest(self) -> str:
        """The lock's identity, SHA-256."""
        return lock.digest(self.distributions)

    def document(self) -> dict[str, Any]:
        """The content of `cell.json`, which is also `/opt/knowngood/cell.json` in the image."""
        return {
            "schema": SCHEMA,
            "id": str(self.cell),
            "axes": {str(axis): value for axis, value in self.cell.axes().items()},
            "base": self.base,
            "inputs": self.inputs,
            "lock": self.digest,
            "layers": [layer.name for layer in self.layers],
        }


class Tree:
    """Reads and writes `docker/` under a project's root."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "docker"

    def cell_folder(self, cell: Cell) -> Path:
        """Where the cell's Dockerfile and `cell.json` lie."""
        return self.folder / "cells" / str(cell)

    def locked(self) -> frozenset[str]:
        """The ids of the cells that have a lock, sound or not."""
        return frozenset(path.parent.name for path in (self.folder / "cells").glob("*/cell.json"))

    def load(self, cell: Cell) -> CellLock | None:
        """The committed lock of a cell, `None` when it was never locked; `UsageError` when it is damaged."""
        path = self.cell_folder(cell) / "cell.json"
        if not path.exists():
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["schema"] != SCHEMA or stored["id"] != str(cell):
                raise UsageError(f"{path}: not the {SCHEMA} of {cell}; run `knowngood lock` again")
            found = CellLock(
                cell=cells.parse(stored["id"]),
                base=stored["base"],
                inputs=stored["inputs"],
                layers=tuple(self._layer(name) for name in stored["layers"]),
            )
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise UsageError(f"{path} is damaged ({error!r}); run `knowngood lock` again") from None
        if found.digest != stored["lock"]:
            raise UsageError(f"{path}: its layers were changed by hand; run `knowngood lock` again")
        return found

    def record_path(self, cell: Cell) -> Path:
        """Where the record of the cell's image lies."""
        return self.cell_folder(cell) / record.FILE

    def load_record(self, cell: Cell) -> record.Record | None:
        """The committed record of the cell's image, `None` when it has none; `UsageError` when it is damaged."""
        path = self.record_path(cell)
        return record.parse(path.read_text(encoding="utf-8"), str(path)) if path.exists() else None

    def _layer(self, name: str) -> lock.Layer:
        path = self.folder / "layers" / name / "requirements.txt"
        distributions = lock.parse_requirements(path.read_text(encoding="utf-8"), str(path))
        group = name.rsplit("-", 1)[0]
        if len(distributions) == 1:
            group = group.removesuffix("-" + distributions[0].version.split("+")[0])
        layer = lock.Layer(group=group, distributions=distributions)
        if layer.name != name:
            raise UsageError(f"{path}: the content was changed by hand; run `knowngood lock` again")
        return layer

    def save(self, locked: CellLock) -> bool:
        """Write the layers, then the cell that names them; returns whether anything changed."""
        changed = [
            write_text(self.folder / "layers" / layer.name / "requirements.txt", layer.requirements())
            for layer in locked.layers
        ]
        text = json.dumps(locked.document(), indent=1) + "\n"
        changed.append(write_text(self.cell_folder(locked.cell) / "cell.json", text))
        return any(changed)

    def orphans(self, cells: Collection[Cell]) -> list[Path]:
        """Folders of cells that the matrix no longer has, and of layers that no cell names."""
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
        """Remove the orphans; returns what was removed."""
        orphans = self.orphans(cells)
        for path in orphans:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        return orphans
