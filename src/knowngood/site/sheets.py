"""The matrix in parts, where one page of it would be too much: by GPU, then by torch, then by the dozen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knowngood.site.catalog import Cell

MOST = 200
"""Cells on a page: one of 500 was 3 MB, and a screen reader's tree of 60,000 things."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One page of the matrix."""

    name: str
    title: str
    cells: Sequence[Cell]

    def tiers(self) -> dict[str, int]:
        """How many cells are how far."""
        return _counted(cell.tier for cell in self.cells)

    def outcomes(self, setting: str) -> dict[str, int]:
        """How many cells do what under a setting."""
        return _counted(cell.attention[setting].outcome for cell in self.cells if setting in cell.attention)


def sheets(cells: Sequence[Cell]) -> list[Sheet]:
    """The pages; none where one is enough."""
    if len(cells) <= MOST:
        return []
    found = []
    for gpu, of_gpu in _grouped(cells, lambda cell: cell.axes["gpu"]).items():
        if len(of_gpu) <= MOST:
            found.append(Sheet(name=gpu, title=gpu, cells=of_gpu))
            continue
        for torch, group in _grouped(of_gpu, lambda cell: cell.axes["torch"]).items():
            parts = [group[begin : begin + MOST] for begin in range(0, len(group), MOST)]
            for number, part in enumerate(parts, 1):
                name, title = f"{gpu}-torch{torch}", f"{gpu}, torch {torch}"
                if len(parts) > 1:
                    name, title = f"{name}-{number}", f"{title}, part {number} of {len(parts)}"
                found.append(Sheet(name=name, title=title, cells=part))
    return found


def _grouped(cells: Iterable[Cell], key: Callable[[Cell], str]) -> Mapping[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(key(cell), []).append(cell)
    return found


def _counted(words: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found
