"""`knowngood size [SELECT]`: what layers and cells weigh in a registry, from the committed records."""

from __future__ import annotations

import argparse

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    parser.add_argument("--layers", action="store_true", help="list every layer, and how many cells have it")
    parser.add_argument(
        "--check", action="store_true", help="fail when a cell is larger than matrix.yaml's `size` allows"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Weigh the selected cells."""
    from knowngood import select, table, units
    from knowngood.building import sizes

    here = project.find()
    cells = select.select(here.matrix.cells, here.matrix.aliases, arguments.select)
    found = {str(cell): here.tree.load_record(cell) for cell in cells}
    measured = sizes.measure([record for record in found.values() if record])
    unrecorded = [name for name, record in found.items() if record is None]
    budget = here.matrix.size
    rows = [[item.cell, units.text(item.size), units.text(item.own)] for item in measured.cells]
    lines = [
        table.text(
            ["cell", "in a registry", "only it has"], [*rows, *([name, "unknown", "unknown"] for name in unrecorded)]
        )
    ]
    if arguments.layers:
        listed = [
            [layer.name, units.text(layer.size), f"{len(layer.cells)}", layer.digest[:19]] for layer in measured.layers
        ]
        lines.append(table.text(["layer", "in a registry", "cells", "digest"], listed))
    stored = f"{units.text(measured.unique)} in one registry, {units.text(measured.apart)} apart"
    lines.append(f"{len(measured.cells)} cells: {stored}")
    lines += [f"{name}: no record; `knowngood build --record '{name}'` writes it" for name in unrecorded]
    large = list(sizes.too_large(measured, budget)) if arguments.check and budget else []
    lines += [
        f"{cell.cell}: {units.text(cell.size)}, matrix.yaml's `size` allows {units.text(budget)}; its largest layer is "
        f"{layer.name} with {units.text(layer.size)}"
        for cell, layer in large
    ]
    document = {
        "cells": [vars(item) for item in measured.cells],
        "layers": [vars(item) for item in measured.layers],
        "unique": measured.unique,
        "apart": measured.apart,
        "unrecorded": unrecorded,
        "budget": budget,
        "too_large": [cell.cell for cell, _ in large],
    }
    return Answer(1 if large else 0, document, "\n".join(lines))
