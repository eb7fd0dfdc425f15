"""Add an entry to the text of matrix.yaml: a few lines at the end of `cells`, every other byte as it was. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from knowngood.core.cell import NO_FLASH_ATTN, Cell
from knowngood.core.errors import InputError
from knowngood.core.yaml_document import YamlDocument, parse_yaml

_SECTION = "cells"


@dataclass(frozen=True, kw_only=True)
class MatrixAddition:
    """The text of matrix.yaml with one more entry."""

    text: str
    """The whole text."""
    entry: str
    """The lines of the new entry."""
    line: int
    """The number of its first line, from 1."""


def render_matrix_entry(cell: Cell, base: str, extras: tuple[str, ...] = ()) -> list[str]:
    """Return the keys and values of an entry for `cells`, one a line; `extras` are further requirements."""
    lines = [f"gpu: {cell.gpu}", f"torch: {cell.torch}", f"transformers: {cell.transformers}"]
    if cell.flash_attn != NO_FLASH_ATTN:
        lines.append(f"flash-attn: {cell.flash_attn}")
    if cell.framework_pin:
        lines.append(f"framework: {'=='.join(cell.framework_pin)}")
    if extras:
        lines.append(f"with: {json.dumps(extras)}")
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
