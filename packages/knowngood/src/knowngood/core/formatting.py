"""Text for people: tables as wide as the terminal, and sizes in decimal units, as registries and disks use them."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from knowngood.core.lazy_patterns import lazy_pattern

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = lazy_pattern(r"(\d{1,12}(?:\.\d{1,12})?) ?(B|kB|MB|GB)")


def format_bytes(size: int | None) -> str:
    """Return a number of bytes as `2.73 GB`, `46.1 MB` or `812 B`, and `unknown` for `None`."""
    if size is None:
        return "unknown"
    for unit, digits in (("GB", 2), ("MB", 1), ("kB", 1)):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:,.{digits}f} {unit}"
    return f"{size} B"


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text such as `3.0 GB` states. Raises `ValueError` for any other text."""
    match = _SIZE.fullmatch(text)
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is not a size such as 3.0 GB or 800 MB")
    return round(float(match[1]) * _UNITS[match[2]])


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text, without colour codes or trailing blanks.

    It is at most as wide as the terminal. When the output goes to a file or a program, it is as wide as its content.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 400
    return _ascii_table(header, rows, width) or _rich_table(header, rows, width)


def _ascii_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str | None:
    """The same text as `_rich_table` without importing rich; `None` when a value must be folded or is not ASCII."""
    values = [list(header), *(list(row) for row in rows)]
    if not all(value.isascii() and value.isprintable() for row in values for value in row):
        return None
    widths = [max(map(len, column)) for column in zip(*values, strict=True)]
    total = sum(widths) + 3 * (len(widths) - 1)
    if total > width:
        return None
    lines = ["   ".join(map(str.ljust, row, widths)).rstrip() for row in values]
    return "\n".join([lines[0], "─" * total, *filter(None, lines[1:])])


def _rich_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
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


_COLOURS = {
    **dict.fromkeys(("verified", "compatible", "ok", "proven"), 32),
    **dict.fromkeys(("broken", "error", "bad", "failed"), 31),
    **dict.fromkeys(("unknown", "warning", "warn"), 33),
}
"""The words of verdicts, and the number of their colour in a terminal."""
_VERDICT = lazy_pattern(rf"^( *)({'|'.join(_COLOURS)})(?=:|$|  )")
_COMMAND = lazy_pattern(r"^ *([a-z ]{1,24}: )?(\S*/)?(knowngood|docker|podman|apptainer|mkdir|nox|uv|pip) ")


def format_answer(text: str, stream: TextIO) -> str:
    """Return the text of an answer as `stream` shows it: on a terminal wrapped at words, with verdicts in colour.

    Commands, which people copy, and tables are not wrapped. Nothing is coloured where NO_COLOR is set.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = [part for line in text.split("\n") for part in _wrap(line, width)]
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return "\n".join(lines)
    return "\n".join(
        _VERDICT.sub(lambda match: f"{match[1]}\x1b[{_COLOURS[match[2]]}m{match[2]}\x1b[0m", line) for line in lines
    )


def _wrap(line: str, width: int) -> list[str]:
    """Return a line in parts of at most `width`, cut between words and indented as it is, and by two more."""
    if len(line) <= width or _COMMAND.match(line):
        return [line]
    indent = line[: len(line) - len(line.lstrip())] + "  "
    parts = textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return parts or [line]


_CONTROLS = lazy_pattern(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    """Return text for a terminal: what could move its cursor, colour it or reverse the order of letters is escaped.

    Line ends and tabs stay. Logs, files and answers of servers, whose words are repeated, may hold anything.
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
