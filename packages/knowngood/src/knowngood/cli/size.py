"""`knowngood size [SELECT]`: the size of layers and cells in a registry, from the committed records."""

from __future__ import annotations

import argparse

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.core.formatting import format_bytes, format_table
from knowngood.images import image_sizes
from knowngood.project.checkout import find_project


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)
    parser.add_argument(
        "--check", action="store_true", help="fail when a cell is larger than matrix.yaml's `size` allows"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Measure the selected cells (default: all)."""
    project = find_project()
    cells = project.matrix.select_cells(arguments.select)
    records = {str(cell): project.tree.load_record(cell) for cell in cells}
    measured = image_sizes.measure_images([record for record in records.values() if record])
    unrecorded = [name for name, record in records.items() if record is None]
    budget = project.matrix.size
    rows = [[item.cell, format_bytes(item.size), format_bytes(item.own)] for item in measured.cells]
    lines = [
        format_table(
            ["cell", "in a registry", "only it has"], [*rows, *([name, "unknown", "unknown"] for name in unrecorded)]
        )
    ]
    stored = f"{format_bytes(measured.unique)} in one registry, {format_bytes(measured.apart)} apart"
    lines.append(f"{len(measured.cells)} cells: {stored}")
    lines += [f"{name}: no record; `knowngood build --record '{name}'` writes it" for name in unrecorded]
    large = list(image_sizes.find_oversized_cells(measured, budget)) if arguments.check and budget else []
    lines += [
        f"{cell.cell}: {format_bytes(cell.size)}, matrix.yaml's `size` allows {format_bytes(budget)}; "
        f"its largest layer is {layer.name} with {format_bytes(layer.size)}"
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
