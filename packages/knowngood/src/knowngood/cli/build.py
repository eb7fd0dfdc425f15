"""`knowngood build [SELECT]`: build the images of cells, without the suite, or --plan what that does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from knowngood.cli.build_matrix import add_build_arguments, build_cells, order_from_arguments
from knowngood.cli.main import Answer
from knowngood.core.errors import KnowngoodError
from knowngood.core.formatting import format_bytes, format_table
from knowngood.engine import container_engine
from knowngood.images import build_survey
from knowngood.images.free_resources import DISK_PER_BYTE
from knowngood.images.matrix_plan import CellPlan, LayerPlan, MatrixPlan, PlanAction
from knowngood.launch.cell_verdict import CellVerdicts
from knowngood.lock import wheelhouse
from knowngood.project.cell_answers import CellAnswers, split_broken_cells
from knowngood.project.checkout import find_project


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `build-matrix` that do not concern the suite, and `--plan`."""
    add_build_arguments(parser)
    parser.add_argument(
        "--plan",
        action="store_true",
        help="build nothing; show what would be built, fetched and reused, how large it is, and in which order",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Prepare the engine and the bases, then lock, render and build the selected cells."""
    return show_plan(arguments) if arguments.plan else build_cells(order_from_arguments(arguments), suite=None)


def show_plan(arguments: argparse.Namespace) -> Answer:
    """Show what building the selected cells would do; a layer counts as reused when the engine that runs has it."""
    project = find_project()
    cells = project.matrix.select_cells(arguments.select)
    _, broken = split_broken_cells(project, cells)
    if broken:
        raise KnowngoodError("\n".join(map(str, broken.values())))
    engine = container_engine.find_running_engine()
    plan = build_survey.survey_plan(project, cells, wheelhouse.wheelhouse_folder(), engine)
    host = engine.host if engine else None
    verdicts = CellVerdicts(CellAnswers(project), engine, os.environ, pulls=False)
    notes = [f"{cell}: {wheel.text}" for cell in cells for wheel in verdicts.judge(cell).compiled]
    notes += [f"{cell}: {warning}" for cell in cells for warning in verdicts.judge(cell).warnings]
    refused = any(cell.action is PlanAction.REFUSED for cell in plan.cells)
    return Answer(2 if refused else 0, {"engine": host, **plan.document()}, _text(plan, host, notes))


def _text(plan: MatrixPlan, engine_host: str | None, notes: Sequence[str]) -> str:
    """Return the plan for people: the cells, the layers, what is to be minded, and the sums."""
    lines = [
        format_table(
            ["", "cell", "action", "fetches", "adds to a registry", "layers only it has"],
            [_cell_row(number, cell) for number, cell in enumerate(plan.cells, 1)],
        ),
        "",
        format_table(
            ["layer", "action", "fetches", "in a registry", "cells"], [_layer_row(layer) for layer in plan.layers]
        ),
        "",
    ]
    lines += [f"{cell.cell}: {cell.note}" for cell in plan.cells if cell.note]
    lines += notes
    lines += [
        f"base {digest}: bootstrapped first, from Debian packages"
        for digest, action in plan.bases.items()
        if action is PlanAction.BUILD
    ]
    building, reusing = (
        [layer for layer in plan.layers if layer.action is action] for action in (PlanAction.BUILD, PlanAction.REUSE)
    )
    lines.append(
        f"{len(building)} layers to build, {_format_sum(plan.size)} in a registry; "
        f"{format_bytes(plan.download)} of wheels to fetch, up to {format_bytes(DISK_PER_BYTE * plan.download)} of "
        f"disk; {len(reusing)} layers reused, {_format_sum(plan.reused)}"
    )
    lines.append(
        f"layers count as reused when the engine at {engine_host} has them"
        if engine_host
        else "no engine was asked, or none answers, so nothing counts as built"
    )
    return "\n".join(lines)


def _cell_row(number: int, cell: CellPlan) -> list[str]:
    return [
        str(number),
        cell.cell,
        str(cell.action),
        format_bytes(cell.download),
        format_bytes(cell.adds),
        _first_names(cell.only),
    ]


def _layer_row(layer: LayerPlan) -> list[str]:
    return [
        layer.name,
        str(layer.action),
        format_bytes(layer.download),
        format_bytes(layer.size),
        str(len(layer.cells)),
    ]


def _first_names(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "none"


def _format_sum(size: tuple[int, int]) -> str:
    total, unknown = size
    if not unknown:
        return format_bytes(total)
    return f"{format_bytes(total)} and {unknown} of unknown size" if total else "unknown"
