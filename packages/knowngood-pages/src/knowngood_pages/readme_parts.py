"""The rendered parts of README.md and other pages, between their markers, and the picture of the matrix. Pure.

The picture has the same cells, outcomes and figures as the site's page of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.core.attention import ATTENTION
from knowngood.core.cell import Cell
from knowngood.core.errors import UsageError
from knowngood.evidence.cell_answer import CellAnswer, SettingStateKind
from knowngood_pages import site_pages

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood_pages.catalog import CatalogCell


@dataclass(frozen=True, kw_only=True)
class ReadmeRow:
    """A row of the README's table of cells."""

    cell: Cell
    aliases: Sequence[str]
    answer: CellAnswer
    size: int | None
    """Compressed bytes in a registry; `None` when no build is recorded."""


def replace_marked_part(text: str, name: str, body: str) -> str:
    """Return `text` with `body` between the markers of `name`; `UsageError` when the markers are missing."""
    begin, end = f"<!-- {name}: rendered -->", f"<!-- {name}: end -->"
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise UsageError(f"there are no markers {begin} and {end}; put them where the {name} belong")
    return f"{before}{begin}\n{body}\n{end}{after}"


def render_cell_table(rows: Iterable[ReadmeRow]) -> str:
    """Return the table of cells as Markdown."""
    lines = [
        "| alias | GPU | CUDA, torch | transformers | flash-attn | framework | proven | seen training with | size |",
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
            row.answer.tier_text,
            _seen_settings(row.answer),
            "" if row.size is None else f"{row.size / 1e9:.2f} GB",
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def _seen_settings(answer: CellAnswer) -> str:
    """Return the settings that were seen training on the cell's GPU; where there are none, those of a CPU.

    Those of an emulated CPU come last.
    """
    places = {
        SettingStateKind.SEEN_ON_GPU: "",
        SettingStateKind.SEEN_ON_CPU: "on a CPU: ",
        SettingStateKind.SEEN_EMULATED: "on an emulated CPU: ",
    }
    for kind, place in places.items():
        if names := [name for name, state in answer.settings.items() if state.kind is kind]:
            return place + ", ".join(names)
    return ""


_LETTER, _TIER, _SQUARE = 5.7, 126, 54
"""Widths in pixels: a letter of a cell's name, the column of tiers, a square."""
_ROW, _TOP = 23, 82
"""Heights in pixels: a row, and everything above the first row."""


@dataclass(frozen=True, kw_only=True)
class PictureRow:
    """A row of the picture; without a cell it is a heading."""

    y: int
    text: str
    cell: CatalogCell | None = None
    most: Mapping[str, float] | None = None


def render_matrix_picture(cells: Iterable[CatalogCell], templates: Path) -> str:
    """Return the matrix as SVG: maintained cells, retired ones, then those that only runs know."""
    cells = list(cells)
    lines: list[PictureRow] = []
    y = _TOP
    for title, members in (
        ("", [cell for cell in cells if cell.in_matrix and not cell.retired]),
        ("retired", [cell for cell in cells if cell.retired]),
        ("seen in runs, not in the matrix", [cell for cell in cells if not cell.in_matrix and cell.attention]),
    ):
        if title and members:
            lines.append(PictureRow(y=y + 8, text=title))
            y += _ROW + 8
        for cell in members:
            lines.append(PictureRow(y=y, text=shorten_cell(cell), cell=cell, most=site_pages.greatest_figures(cell)))
            y += _ROW
    left = 20 + round(_LETTER * max((len(line.text) for line in lines), default=0))
    sizes: dict[str, Any] = {"left": left, "tier": _TIER, "square": _SQUARE, "row": _ROW, "top": _TOP}
    width = left + _TIER + _SQUARE * len(ATTENTION) + 16
    return (
        site_pages.site_templates(templates)
        .get_template("matrix.svg.j2")
        .render(
            lines=lines,
            width=width,
            height=y + 16,
            settings=list(ATTENTION),
            glyphs=site_pages.STATE_GLYPHS,
            meanings=site_pages.STATE_MEANINGS,
            tiers=site_pages.TIER_MEANINGS,
            **sizes,
        )
    )


def shorten_cell(cell: CatalogCell) -> str:
    """Return a short label of a cell: its GPU, and what a researcher looks for."""
    axes = cell.axes
    flash = axes.get("flash-attn", "0")
    words = [axes["gpu"], f"torch {axes['torch']}", f"tf {axes['transformers']}"]
    words += [] if flash == "0" else [f"fa {flash}"]
    return ", ".join([*words, *([axes["framework"]] if "framework" in axes else [])])
