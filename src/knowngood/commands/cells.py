"""`knowngood cells [SELECT]`: the cells with tier and attention table."""

from __future__ import annotations

import argparse

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """List the selected cells."""
    from knowngood import evidence, select, table

    here = project.find()
    matrix = here.matrix
    rows, document, notes = [], [], []
    for cell in select.select(matrix.cells, matrix.aliases, arguments.select):
        runs, left_out = evidence.load_all(here.evidence, str(cell))
        notes += left_out
        tier = evidence.tier(runs, locked=(here.tree.cell_folder(cell) / "cell.json").exists())
        attention = evidence.attention(runs)
        aliases = [alias for alias, target in matrix.aliases.items() if target == str(cell)]
        document.append(
            {
                "id": str(cell),
                "axes": {str(axis): value for axis, value in cell.axes().items()},
                "aliases": aliases,
                "tier": str(tier),
                "attention": attention,
            }
        )
        passed = ", ".join(name for name, outcome in attention.items() if outcome == "pass")
        rows.append([str(cell), str(tier), ", ".join(aliases), passed or "-"])
    text = table.text(["cell", "tier", "aliases", "trains with"], rows)
    return Answer(0, {"cells": document, "left_out": notes}, "\n".join([text, *notes]))
