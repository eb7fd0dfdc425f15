"""What an item of `cells` stands for: the product of its lists without what it excludes, and whether it is retired.

Both readers of matrix.yaml use this: `knowngood.core.matrix`, which reports every defect with its line, and
`knowngood_facts.compat.matrix_cells`, which takes the cells of a sound file in milliseconds. So it imports no pydantic.

Add an entry to the text of matrix.yaml: a few lines at the end of `cells`, every other byte as it was.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knowngood.core.cell import NO_FLASH_ATTN, NO_FRAMEWORK, Cell
from knowngood.core.errors import InputError, UsageError
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.core.yaml_document import YamlDocument, parse_yaml

ENTRY_AXES = ("gpu", "base", "torch", "transformers", "flash-attn", "framework", "host")
"""The keys of an item that may hold a list, in the order in which the product is taken."""

AxisLists = Mapping[str, Sequence[str]]
"""Axis -> the values that it may have, in the spelling of a cell."""


@dataclass(frozen=True, kw_only=True)
class Retirement:
    """What matrix.yaml says about a cell that is no longer built, published or offered."""

    on: str
    """The day, such as `2026-11-01`."""
    successor: str | None = None
    """The id of the cell to take instead, or `None` when there is none."""

    def sentence(self, cell: str) -> str:
        """Return what to answer when somebody names the retired cell."""
        instead = f"its successor is {self.successor}" if self.successor else "it has no successor"
        return f"{cell} was retired on {self.on}; {instead}"

    def document(self) -> dict[str, str | None]:
        """Return the value as JSON answers have it."""
        return {"on": self.on, "for": self.successor}


class RetiredCellError(UsageError):
    """A retired cell was named where only cells that are still maintained make sense (exit 2)."""


def normal_axis_value(axis: str, text: str) -> str:
    """Return a value as a cell has it: `none` of flash-attn becomes `0`, the framework's `a==1` becomes `a1`."""
    if axis == "flash-attn" and text == "none":
        return NO_FLASH_ATTN
    return text.replace("==", "", 1) if axis == "framework" else text


def axis_lists(item: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the lists of an item (or of an exclude) as it stands in the file; a single value is a list of one."""
    lists = {}
    for axis in ENTRY_AXES:
        if axis in item:
            value = item[axis]
            values = value if isinstance(value, list) else [value]
            lists[axis] = [normal_axis_value(axis, str(text)) for text in values]
    return lists


def expand_product(lists: AxisLists, excludes: Sequence[AxisLists]) -> list[dict[str, str]]:
    """Return the combinations of an item: the product of its lists, without those that an exclude matches.

    Without a list, the item has no flash-attn and no framework, and is for x86-64. `is_excluded` says what an exclude
    matches.
    """
    whole: AxisLists = {
        "flash-attn": (NO_FLASH_ATTN,),
        "framework": (NO_FRAMEWORK,),
        "host": (str(DEFAULT_HOST),),
        **lists,
    }
    products = itertools.product(*(whole.get(axis, ()) for axis in ENTRY_AXES))
    combinations = [dict(zip(ENTRY_AXES, chosen, strict=True)) for chosen in products]
    return [item for item in combinations if not any(is_excluded(item, exclude) for exclude in excludes)]


def is_excluded(combination: Mapping[str, str], exclude: AxisLists) -> bool:
    """Return whether a combination has one of the values of `exclude` on every axis that it names."""
    return all(combination[axis] in values for axis, values in exclude.items())


def find_exclude_problems(
    lists: AxisLists, written: AxisLists, excludes: Sequence[AxisLists]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the place below `exclude` and the text of each defect of an item's excludes.

    An exclude must name values that the item has (`written`), exclude something that the ones before it leave, and all
    of them together must leave something. `lists` are the values of the item without those that have a defect; with
    such a defect, only the first is looked for.
    """
    complete = all(tuple(values) == tuple(lists.get(axis, ())) for axis, values in written.items())
    left = expand_product(lists, [])
    for number, exclude in enumerate(excludes):
        strange = [(axis, value) for axis, values in exclude.items() for value in values if value not in written[axis]]
        for axis, value in strange:
            yield (number, axis), f"the exclude names {axis} {value}, but this item has {', '.join(written[axis])}"
        before, left = left, [point for point in left if not is_excluded(point, exclude)]
        if complete and not strange and len(left) == len(before):
            yield (number,), "this exclude matches nothing that the ones before it leave; remove it"
    if complete and excludes and not left:
        yield (), "the excludes leave nothing of this item; remove the item instead"


def retirement_from_item(item: Mapping[str, Any]) -> Retirement | None:
    """Return the retirement of a sound item as it stands in the file, `None` when its cells are maintained."""
    retired = item.get("retired")
    if retired is None:
        return None
    successor = retired.get("for", "none")
    return Retirement(on=str(retired["on"]), successor=None if successor == "none" else str(successor))


_SECTION = "cells"


@dataclass(frozen=True, kw_only=True)
class MatrixAddition:
    """The text of matrix.yaml with one more entry."""

    text: str
    entry: str
    """The lines of the new entry."""
    line: int
    """The number of its first line, from 1."""


def render_matrix_entry(cell: Cell, base: str, extras: tuple[str, ...] = (), locked_at: str = "") -> list[str]:
    """Return the keys and values of an entry for `cells`, one a line.

    `extras` are further requirements; `locked_at` is the day of the cell where it has one of its own.
    """
    lines = [f"gpu: {cell.gpu}", f"torch: {cell.torch}", f"transformers: {cell.transformers}"]
    if cell.flash_attn != NO_FLASH_ATTN:
        lines.append(f"flash-attn: {cell.flash_attn}")
    if cell.framework_pin:
        lines.append(f"framework: {'=='.join(cell.framework_pin)}")
    if extras:
        lines.append(f"with: {json.dumps(extras)}")
    if locked_at:
        lines.append(f"locked-at: {locked_at}")
    return [*lines, f"base: {base}"]


def insert_matrix_entry(text: str, file: str, lines: list[str]) -> MatrixAddition:
    """Return the text of matrix.yaml with an entry after the last one of `cells`.

    The new lines are indented as the last entry is. `file` is the name of the file for messages.

    Raises:
        InputError: the text is not well-formed, or its `cells` is not a list with one entry after the other.
    """
    source = parse_yaml(text, file)
    rows = text.splitlines(keepends=True)
    dash, column = _place_of_last_entry(source, rows)
    keys = sorted(mark.line for path, mark in source.key_marks.items() if len(path) == 1)
    end = next((line for line in keys if line > source.key_marks[(_SECTION,)].line), len(rows))
    while end and (not rows[end - 1].strip() or rows[end - 1].startswith("#")):
        end -= 1
    newline = "\r\n" if rows[0].endswith("\r\n") else "\n"
    starts = [" " * dash + "-" + " " * (column - dash - 1)] + [" " * column] * (len(lines) - 1)
    entry = [start + line + newline for start, line in zip(starts, lines, strict=True)]
    before = "".join(rows[:end])
    before += "" if before.endswith("\n") else newline
    return MatrixAddition(text=before + "".join(entry + rows[end:]), entry="".join(entry), line=end + 1)


def _place_of_last_entry(source: YamlDocument, rows: list[str]) -> tuple[int, int]:
    """Return the columns of the dash and of the keys of the last entry."""
    cells = source.data.get(_SECTION) if isinstance(source.data, dict) else None
    mark = source.marks.get((_SECTION, len(cells) - 1)) if isinstance(cells, list) and cells else None
    head = rows[mark.line][: mark.column] if mark else ""
    if mark is None or head.strip() != "-":
        text = "`cells` must be a list with entries that begin with a dash on their own lines, to add one"
        raise InputError([source.problem((_SECTION,), text, key=True)])
    return head.index("-"), mark.column
