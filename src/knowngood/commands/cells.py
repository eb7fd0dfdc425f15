"""`knowngood cells [SELECT]`: the cells with tier and attention table."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    parser.add_argument(
        "--catalog", metavar="URL|FILE", help="the cells of a site, by its catalog.json, in place of this project's"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """List the selected cells."""
    from knowngood import select, table
    from knowngood.runs.index import Index, ask
    from knowngood.runs.standing import Standing

    if arguments.catalog:
        return _of_catalog(arguments.catalog, arguments.select)
    here = project.find()
    matrix = here.matrix
    standings = ask(here.evidence, Index.standings, partial(print, file=sys.stderr))
    locked = here.tree.locked()
    rows, document, notes = [], [], list[str]()
    for cell in select.select(matrix.cells, matrix.aliases, arguments.select):
        name = str(cell)
        found = standings.get(name, Standing())
        notes += found.left_out
        tier = found.tier(locked=name in locked)
        attention = dict(found.attention)
        aliases = [alias for alias, target in matrix.aliases.items() if target == name]
        document.append(
            {
                "id": name,
                "axes": {str(axis): value for axis, value in cell.axes().items()},
                "aliases": aliases,
                "tier": str(tier),
                "attention": attention,
            }
        )
        passed = ", ".join(setting for setting, outcome in attention.items() if outcome == "pass")
        rows.append([name, str(tier), ", ".join(aliases), passed or "-"])
    text = table.text(["cell", "tier", "aliases", "trains with"], rows)
    return Answer(0, {"cells": document, "left_out": notes}, "\n".join([text, *notes]))


def _of_catalog(origin: str, chosen: list[str]) -> Answer:
    """The cells of a site."""
    from knowngood import cell, select, table
    from knowngood.site import fetch

    found = fetch.catalog(origin)
    aliases = {alias: item.id for item in found.cells for alias in item.aliases}
    items = {item.id: item for item in found.cells if item.in_matrix}
    cells = [items[str(one)] for one in select.select([cell.parse(name) for name in items], aliases, chosen)]
    document = [
        {
            "id": item.id,
            "axes": item.axes,
            "aliases": item.aliases,
            "tier": item.tier,
            "attention": {setting: seen.outcome for setting, seen in item.attention.items()},
        }
        for item in cells
    ]
    rows = [
        [
            item.id,
            item.tier,
            ", ".join(item.aliases),
            ", ".join(setting for setting, seen in item.attention.items() if seen.outcome == "pass") or "-",
        ]
        for item in cells
    ]
    text = table.text(["cell", "tier", "aliases", "trains with"], rows)
    return Answer(0, {"cells": document, "left_out": found.left_out}, text)
