"""A covering set: when not all cells can run, those in which every two values that some cell has meet. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from knowngood.cell import NO_FRAMEWORK, Axis, Cell

AXES = (Axis.GPU, Axis.TORCH, Axis.TRANSFORMERS, Axis.FLASH_ATTN, Axis.PYTHON, Axis.FRAMEWORK)
"""CUDA and triton follow from torch."""

_SETTING = "setting"


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
    names = [*map(str, AXES), _SETTING]
    factors = {name: list(dict.fromkeys(row[place] for row in rows)) for place, name in enumerate(names)}
    varied = [name for name in names if len(factors[name]) > 1]
    chosen = list(rows) if len(varied) < 2 else _made(settings, factors, varied)
    return Covering(
        rows=tuple(sorted((rows[row], row[-1]) for row in chosen)),
        combinations=len(rows),
        pairs=len(pairs(chosen)),
    )


def _made(
    settings: Mapping[Cell, Sequence[str]], factors: Mapping[str, list[str]], varied: Sequence[str]
) -> list[tuple[str, ...]]:
    from covertable import make

    existing = []
    for cell, names in settings.items():
        values = zip(map(str, AXES), _values(cell), strict=True)
        same = [{"operator": "eq", "left": name, "value": value} for name, value in values if name in varied]
        among = [{"operator": "in", "left": _SETTING, "values": list(names)}] if _SETTING in varied else []
        existing.append({"operator": "and", "conditions": [*same, *among]})
    single = {name: values[0] for name, values in factors.items()}
    made = make(
        {name: factors[name] for name in varied}, strength=2, constraints=[{"operator": "or", "conditions": existing}]
    )
    return [tuple(({**single, **row})[name] for name in factors) for row in made]


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
