"""The matrix as one picture, for the README: the same cells, outcomes and figures as on the site's page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.site import pages
from knowngood.solving.universe import ATTENTION

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood.site.catalog import Cell

LETTER, TIER, SQUARE, ROW, TOP = 5.7, 126, 54, 23, 64
"""Pixels: the width of a letter of a cell's name, of a tier, of a square; the height of a row and of what is above."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of the picture, or (without a cell) a heading."""

    y: int
    text: str
    cell: Cell | None = None
    most: Mapping[str, float] | None = None


def svg(cells: Iterable[Cell], templates: Path) -> str:
    """The picture."""
    made = list(cells)
    lines: list[Line] = []
    y = TOP
    for title, members in (
        ("", [cell for cell in made if cell.in_matrix]),
        ("seen in runs, not in the matrix", [cell for cell in made if not cell.in_matrix and cell.attention]),
    ):
        if title and members:
            lines.append(Line(y=y + 8, text=title))
            y += ROW + 8
        for cell in members:
            lines.append(Line(y=y, text=label(cell), cell=cell, most=pages.greatest(cell)))
            y += ROW
    left = 20 + round(LETTER * max((len(line.text) for line in lines), default=0))
    sizes: dict[str, Any] = {"left": left, "tier": TIER, "square": SQUARE, "row": ROW, "top": TOP}
    width = left + TIER + SQUARE * len(ATTENTION) + 16
    return (
        pages.environment(templates)
        .get_template("matrix.svg.j2")
        .render(
            lines=lines,
            width=width,
            height=y + 16,
            settings=list(ATTENTION),
            glyphs=pages.GLYPHS,
            meanings=pages.MEANINGS,
            tiers=pages.TIERS,
            **sizes,
        )
    )


def label(cell: Cell) -> str:
    """A cell in few words: its GPU, and what a researcher looks for."""
    axes = cell.axes
    flash = axes.get("flash-attn", "0")
    said = [axes["gpu"], f"torch {axes['torch']}", f"tf {axes['transformers']}"]
    said += [] if flash == "0" else [f"fa {flash}"]
    return ", ".join([*said, *([axes["framework"]] if "framework" in axes else [])])
