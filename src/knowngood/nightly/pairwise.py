"""A covering set: when not all cells can run, those in which every two values that some cell has meet. Pure."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from knowngood.cell import NO_FRAMEWORK, Axis, Cell

AXES = (Axis.GPU, Axis.TORCH, Axis.TRANSFORMERS, Axis.FLASH_ATTN, Axis.PYTHON, Axis.FRAMEWORK)
"""CUDA and triton follow from torch."""


@dataclass(frozen=True, kw_only=True)
class Covering:
    """Which combinations of cell and setting to look at."""

    rows: tuple[tuple[str, str], ...]
    """(cell, setting)"""
    combinations: int
    """How many there are in all."""
    pairs: int
    """Pairs of values that they cover: all that any cell has."""

    @property
    def cells(self) -> frozenset[str]:
        """The cells to run."""
        return frozenset(cell for cell, _ in self.rows)


def covering(settings: Mapping[Cell, Sequence[str]]) -> Covering:
    """A small set of rows in which every pair of values (of two axes, or of an axis and a setting) occurs.

    `settings` are those that are looked at in each cell.
    """
    rows = {(*_values(cell), name): str(cell) for cell, names in settings.items() for name in names}
    chosen = _chosen(sorted(rows, key=_shuffled))
    return Covering(
        rows=tuple(sorted((rows[row], row[-1]) for row in chosen)),
        combinations=len(rows),
        pairs=len(pairs(chosen)),
    )


def _chosen(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Greedily: the row with the most pairs that no chosen one has, until there are none; the first of equal ones.

    What a row adds only falls, so that one whose count was right and is still the greatest need not be compared again.
    """
    of = [frozenset(pairs([row])) for row in rows]
    left = set().union(*of)
    heap = [(-len(found), place) for place, found in enumerate(of)]
    heapq.heapify(heap)
    chosen = []
    while left:
        _, place = heapq.heappop(heap)
        adds = len(of[place] & left)
        if heap and -adds > heap[0][0]:
            heapq.heappush(heap, (-adds, place))
        else:
            chosen.append(rows[place])
            left -= of[place]
    return chosen


def _shuffled(row: tuple[str, ...]) -> bytes:
    """An order that is always the same and favours none: of equal rows not all are of the first GPU."""
    return hashlib.sha256(repr(row).encode()).digest()


def pairs(rows: Sequence[Sequence[str]]) -> set[tuple[int, str, int, str]]:
    """The pairs of values in these rows."""
    return {
        (first, row[first], second, row[second])
        for row in rows
        for first in range(len(row))
        for second in range(first + 1, len(row))
    }


def _values(cell: Cell) -> tuple[str, ...]:
    axes = cell.axes()
    return tuple(axes.get(axis, NO_FRAMEWORK) for axis in AXES)
