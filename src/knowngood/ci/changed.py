"""Which cells a change concerns, by the files that it touches. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from knowngood.locks.tree import CellLock

EVERY = ("docker/recipe", "smoke_tests")
"""Folders that are in every image."""


def concerned(locks: Iterable[CellLock], paths: Collection[str], *, uv: bool = False) -> list[str]:
    """The ids of the cells that have one of these files in their image or its record; `uv`: its release changed."""
    everywhere = uv or any(path.startswith(tuple(f"{folder}/" for folder in EVERY)) for path in paths)
    touched = {str(PurePosixPath(*PurePosixPath(path).parts[:3])) for path in paths}
    return [str(locked.cell) for locked in locks if everywhere or touched & set(folders(locked))]


def folders(locked: CellLock) -> list[str]:
    """The folders that are in this cell's image, or record it, besides those of `EVERY`."""
    layers = [f"docker/layers/{layer.name}" for layer in locked.layers]
    return [f"docker/cells/{locked.cell}", f"docker/bases/{locked.base}", *layers]
