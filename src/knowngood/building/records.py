"""Records of images, taken from the engine: kept in the cache after every build, committed when that is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.atomic import write_text
from knowngood.building import build, record
from knowngood.building.record import Record
from knowngood.engines import imagestore
from knowngood.errors import UsageError
from knowngood.paths import cache_dir

if TYPE_CHECKING:
    from knowngood.building.shape import Shape
    from knowngood.engines.engine import Engine
    from knowngood.locks.tree import CellLock


def take(engine: Engine, image: build.Image, locked: CellLock, shape: Shape) -> Record:
    """The record of an image of the engine; `KnowngoodError` where its store keeps no manifests."""
    return record.of(
        str(locked.cell),
        shape,
        tuple(layer.name for layer in locked.layers),
        imagestore.manifest(engine, image.tag, image.digest),
        {"uv": shape.uv, "buildkit": engine.buildkit, "engine": engine.version},
    )


def keep(made: Record) -> None:
    """Note in the cache what was built: a later plan knows its layers, and what they weigh."""
    write_text(_path(made.shape.inputs), made.text())


def kept(inputs: str) -> Record | None:
    """What was noted of an image."""
    return _read(_path(inputs))


def all_kept() -> Iterator[Record]:
    """Whatever was noted."""
    for path in sorted(_folder().glob("*.json")):
        if found := _read(path):
            yield found


def _folder() -> Path:
    return cache_dir() / "images"


def _path(inputs: str) -> Path:
    return _folder() / f"{inputs}.json"


def _read(path: Path) -> Record | None:
    with contextlib.suppress(OSError, UsageError):  # only a note: what cannot be read was never there
        return record.parse(path.read_text(encoding="utf-8"), str(path))
    return None
