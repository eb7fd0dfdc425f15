"""Tables for people: as wide as the terminal, or as wide as they are when the output goes elsewhere."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence


def text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as text without colour codes or trailing blanks."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 400
    return _plain(header, rows, width) or _rich(header, rows, width)


def _plain(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str | None:
    """As `_rich` has it, in no time, where nothing has to be folded and a letter is as wide as another."""
    values = [list(header), *(list(row) for row in rows)]
    if not all(value.isascii() and value.isprintable() for row in values for value in row):
        return None
    wide = [max(map(len, column)) for column in zip(*values, strict=True)]
    whole = sum(wide) + 3 * (len(wide) - 1)
    if whole > width:
        return None
    lines = ["   ".join(map(str.ljust, row, wide)).rstrip() for row in values]
    return "\n".join([lines[0], "─" * whole, *filter(None, lines[1:])])


def _rich(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=io.StringIO(), width=width)
    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*(Text(value, overflow="fold") for value in row))
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines() if line.strip())
