"""`knowngood cells [SELECT]`: list the cells with their tiers and attention settings."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.core.formatting import format_table
from knowngood.project.checkout import find_project


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)
    parser.add_argument(
        "--catalog",
        metavar="URL|FILE",
        help="list the cells of a site, from its catalog.json, instead of this project's",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """List the selected cells (default: all)."""
    from knowngood.evidence.cell_standing import CellStanding
    from knowngood.evidence.run_index import RunIndex, query_index

    if arguments.catalog:
        return _list_catalog(arguments.catalog, arguments.select)
    project = find_project()
    matrix = project.matrix
    standings = query_index(project.evidence, RunIndex.standings, partial(print, file=sys.stderr))
    locked = project.tree.locked()
    cells, notes = [], list[str]()
    for cell in matrix.select_cells(arguments.select):
        name = str(cell)
        standing = standings.get(name, CellStanding())
        notes += standing.left_out
        cells.append(
            {
                "id": name,
                "axes": {str(axis): value for axis, value in cell.axes().items()},
                "aliases": [alias for alias, target in matrix.aliases.items() if target == name],
                "tier": str(standing.tier(locked=name in locked)),
                "attention": dict(standing.attention),
            }
        )
    return _answer(cells, notes)


def _list_catalog(origin: str, words: list[str]) -> Answer:
    """List the selected cells of a site's catalog."""
    from knowngood.core.cell import parse_cell
    from knowngood.core.selection import select_cells
    from knowngood.reports import site_files

    catalog = site_files.load_catalog(origin)
    aliases = {alias: item.id for item in catalog.cells for alias in item.aliases}
    items = {item.id: item for item in catalog.cells if item.in_matrix}
    selected = [items[str(cell)] for cell in select_cells(map(parse_cell, items), aliases, words)]
    cells = [
        {
            "id": item.id,
            "axes": item.axes,
            "aliases": item.aliases,
            "tier": item.tier,
            "attention": {setting: result.outcome for setting, result in item.attention.items()},
        }
        for item in selected
    ]
    return _answer(cells, catalog.left_out)


def _answer(cells: list[dict[str, Any]], left_out: list[str]) -> Answer:
    rows = [
        [
            cell["id"],
            cell["tier"],
            ", ".join(cell["aliases"]),
            ", ".join(setting for setting, outcome in cell["attention"].items() if outcome == "pass") or "-",
        ]
        for cell in cells
    ]
    text = format_table(["cell", "tier", "aliases", "trains with"], rows)
    return Answer(0, {"cells": cells, "left_out": left_out}, "\n".join([text, *left_out]))
