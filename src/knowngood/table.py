"""Tables for people: as wide as the terminal, or as wide as they are when the output goes elsewhere."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence


def text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as text without colour codes or trailing blanks."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 400
    console = Console(file=io.StringIO(), width=width)
    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*(Text(value, overflow="fold") for value in row))
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines() if line.strip())
