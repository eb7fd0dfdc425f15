"""The rendered parts of README.md and other pages, between their markers, and the picture of the matrix. Pure.

The picture has the same cells, outcomes and figures as the site's page of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.cli.main import GROUPS, all_commands
from knowngood.core.attention import ATTENTION
from knowngood.core.cell import Cell
from knowngood.core.errors import UsageError
from knowngood.core.formatting import format_bytes
from knowngood.core.gpus import GpuMachine, parse_capability
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.evidence.cell_answer import CellAnswer, SettingStateKind
from knowngood.evidence.run_evidence import Tier
from knowngood_pages import site_pages

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood_pages.catalog import CatalogCell


@dataclass(frozen=True, kw_only=True)
class ReadmeRow:
    """A row of the README's table of cells."""

    cell: Cell
    aliases: Sequence[str]
    machine: GpuMachine
    """The kind of machine, an architecture and a host, that the cell is for."""
    answer: CellAnswer
    size: int | None
    """Compressed bytes in a registry; `None` when no build is recorded."""

    @property
    def size_text(self) -> str:
        """The size for people; empty where none is recorded."""
        return "" if self.size is None else format_bytes(self.size)


def find_best_rows(rows: Iterable[ReadmeRow]) -> list[ReadmeRow]:
    """Return the best cell without a trainer for each kind of machine, the newest GPUs last, as `run` chooses it."""
    best: dict[GpuMachine, ReadmeRow] = {}
    order = list(Tier)
    for row in rows:
        if row.cell.framework_pin:
            continue
        other = best.setdefault(row.machine, row)
        best[row.machine] = max(other, row, key=lambda one: (order.index(one.answer.tier), one.cell.merit))
    return sorted(best.values(), key=lambda row: (parse_capability(row.machine.sm), row.machine.host != DEFAULT_HOST))


_SEEN_ON = {
    Tier.TRAINS_ON_GPU: "GPU",
    Tier.TRAINS_ON_CPU: "CPU only",
    Tier.TRAINS_EMULATED: "emulated CPU only",
}
"""Tier -> where the image of a cell was seen training."""


def render_card_table(rows: Iterable[ReadmeRow]) -> str:
    """Return the README's table as Markdown: each card with the best cell for it."""
    lines = [
        "| card | best cell | seen training on | download |",
        "| --- | --- | --- | --- |",
    ]
    for row in find_best_rows(rows):
        cell = row.cell
        cards = list(dict.fromkeys([*row.machine.known_cards, *row.machine.cards]))
        columns = [
            ", ".join([*cards[:4], *(["..."] if len(cards) > 4 else [])]),
            f"`{(*row.aliases, str(cell))[0]}`",
            _SEEN_ON.get(row.answer.tier, "nothing yet"),
            row.size_text,
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def render_cell_page(rows: Iterable[ReadmeRow]) -> str:
    """Return the text of `docs/cells.md`, with all maintained cells."""
    return (
        "<!-- Generated from matrix.yaml and evidence/ by `knowngood render`; do not edit. -->\n\n# The cells\n\n"
        "A cell is one image: a GPU, a CUDA, a torch, a transformers, a flash-attn, a triton and perhaps a trainer. "
        "`knowngood cells --long` has their ids, [glossary.md](glossary.md) the other words.\n\n"
        "![Cells down, attention settings across; each square shows the latest recorded result](matrix.svg)\n\n"
        f"{render_cell_table(rows)}\n"
    )


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
        "| alias | cards | CUDA, torch | transformers | flash-attn | trainer | proven | seen training with | size |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cell = row.cell
        columns = [
            ", ".join(f"`{alias}`" for alias in row.aliases) or "",
            f"{row.machine.label} ({row.machine.name})",
            f"{cell.cuda}, {cell.torch}",
            cell.transformers,
            "" if cell.flash_attn_package is None else cell.flash_attn,
            " ".join(cell.framework_pin or ()),
            row.answer.tier_text,
            _seen_settings(row.answer),
            row.size_text,
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


def render_command_tables() -> str:
    """Return the tables of all commands as Markdown, a table for each group of the help."""
    lines: list[str] = []
    for group, title in GROUPS.items():
        lines += ["", f"### {title[0].upper()}{title[1:]}", "", "| command | does | example |", "|---|---|---|"]
        for name, entry in all_commands().items():
            if entry.group == group:
                lines.append(f"| `{name}` | {entry.summary} | `knowngood {entry.example}` |")
    return "\n".join(lines[1:])


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


def render_matrix_picture(
    cells: Iterable[CatalogCell], templates: Path, labels: Mapping[tuple[str, str], str] | None = None
) -> str:
    """Return the matrix as SVG: maintained cells, retired ones, then those that only runs know.

    `labels` has the cards of each architecture and host in a few words.
    """
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
            lines.append(
                PictureRow(
                    y=y, text=shorten_cell(cell, labels or {}), cell=cell, most=site_pages.greatest_figures(cell)
                )
            )
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
            measured=any(item.step_ms for line in lines if line.cell for item in line.cell.attention.values()),
            **sizes,
        )
    )


def shorten_cell(cell: CatalogCell, labels: Mapping[tuple[str, str], str]) -> str:
    """Return a short label of a cell: its cards, and what a researcher looks for."""
    axes = cell.axes
    flash = axes.get("flash-attn", "0")
    card = labels.get((axes["gpu"], axes.get("host", DEFAULT_HOST)), axes["gpu"])
    words = [card, f"torch {axes['torch']}", f"tf {axes['transformers']}"]
    words += [] if flash == "0" else [f"fa {flash}"]
    return ", ".join([*words, *([axes["framework"]] if "framework" in axes else [])])
