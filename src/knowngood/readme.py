"""The parts of README.md that are rendered, each between its markers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from knowngood.cell import Cell
from knowngood.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell as the README shows it."""

    cell: Cell
    aliases: Sequence[str]
    tier: str
    trains: Sequence[str]
    """The attention settings that were seen training."""
    size: int | None
    """Compressed bytes in a registry; `None` where no build is recorded."""


def replaced(text: str, name: str, body: str) -> str:
    """`text` with `body` between the markers of `name`; `UsageError` when it lost them."""
    begin, end = f"<!-- {name}: rendered -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise UsageError(f"README.md lost its markers {begin} and {end}; put them where the table belongs")
    return f"{before}{begin}\n{body}\n{end}{after}"


def cells(rows: Iterable[Row]) -> str:
    """The table of cells."""
    lines = [
        "| alias | GPU | CUDA, torch | transformers | flash-attn | framework | proven | trains with | size |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cell = row.cell
        columns = [
            ", ".join(f"`{alias}`" for alias in row.aliases) or "",
            cell.gpu,
            f"{cell.cuda}, {cell.torch}",
            cell.transformers,
            "" if cell.flash_attn_package is None else cell.flash_attn,
            " ".join(cell.framework_pin or ()),
            row.tier,
            ", ".join(row.trains),
            "" if row.size is None else f"{row.size / 1e9:.2f} GB",
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)
