"""In which cell's image a wheel is compiled, and the lock that says what torch and headers it sees there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from knowngood.building.pipeline import Pipeline
from knowngood.cell import NO_FRAMEWORK, Cell
from knowngood.locks import locking
from knowngood.locks.tree import CellLock, Tree
from knowngood.matrix import Entry, Matrix
from knowngood.paths import cache_dir
from knowngood.project import Project, cxx11abi


def nearest(cell: Cell, matrix: Matrix) -> Cell:
    """A cell with nothing compiled in it, the same torch and base: itself or its twin before any other. Pure."""
    base = matrix.entry(cell).base
    twin = cell.without_flash_attn().without_framework()
    fits = [
        other.cell
        for other in matrix.entries.values()
        if other.base == base
        and (other.cell.torch, other.cell.cuda, other.cell.python) == (cell.torch, cell.cuda, cell.python)
        and other.cell.flash_attn_package != "flash-attn"
        and other.cell.framework == NO_FRAMEWORK
    ]
    return min(fits, key=lambda other: (other != cell, other != twin, str(other)), default=twin)


def locked(cell: Cell, line: Pipeline, say: Callable[[str], None]) -> tuple[Pipeline, CellLock]:
    """The lock of the nearest cell, and who builds its image.

    One of matrix.yaml's where there is one, so that no image is made for this alone; else the twin, locked aside.
    """
    matrix = line.project.matrix
    near = nearest(cell, matrix)
    if str(near) in matrix.entries:
        found, _, _ = line.lock(near, say)
        return line, found
    entry = matrix.entry(cell)
    aside = Aside(line.project.root)
    aside.prepare(line.project)
    made = locking.lock_cell(
        Entry(cell=near, base=entry.base, extras=entry.extras),
        matrix,
        aside.tree,
        house=line.options.wheelhouse,
        cxx11abi=cxx11abi,
        upgrade=False,
        locked_only=False,
        say=say,
    )
    return replace(line, project=aside, options=replace(line.options, locked=False)), made.lock


def headers(lock: CellLock) -> list[dict[str, str]]:
    """The distributions whose headers and libraries an extension of torch sees, by file and hash. Pure."""
    return [
        {"file": item.file, "sha256": item.sha256}
        for item in sorted(lock.distributions)
        if item.name == "torch" or item.name.startswith("nvidia-")
    ]


class Aside(Project):
    """The project with a `docker/` of its own in the cache, for a cell that matrix.yaml has not."""

    @cached_property
    def tree(self) -> Tree:
        """What is locked here is not committed."""
        return Tree(cache_dir() / "compile" / "aside")

    def prepare(self, project: Project) -> None:
        """Bring over what the images of all cells share."""
        for part in ("recipe", "bases"):
            shutil.copytree(project.tree.folder / part, self.tree.folder / part, dirs_exist_ok=True)
