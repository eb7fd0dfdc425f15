"""`knowngood plan [SELECT]`: what a build would do, fetch and reuse, in which order, before anything is done."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common

if TYPE_CHECKING:
    from knowngood.engine import Engine
    from knowngood.planning import CellPlan, LayerPlan, Plan


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    common.add_wheelhouse(parser)
    parser.add_argument("--offline", action="store_true", help="ask no engine: nothing counts as built")


def run(arguments: argparse.Namespace) -> Answer:
    """Show the plan for the selected cells (default: all)."""
    from knowngood import select, survey, wheelhouse

    here = project.find()
    cells = select.select(here.matrix.cells, here.matrix.aliases, arguments.select)
    engine = None if arguments.offline else _engine()
    made = survey.plan(here, cells, wheelhouse.folder(arguments.wheelhouse), engine)
    seen = f"the engine at {engine.host}" if engine else None
    return Answer(0, {"engine": engine.host if engine else None, **made.document()}, text(made, seen))


def _engine() -> Engine | None:
    from knowngood import engine

    system = engine.find_system()
    return system if isinstance(system, engine.Engine) else engine.find_embedded()


def text(made: Plan, engine: str | None) -> str:
    """The plan for people: cells in their order, layers in theirs, and what it comes to."""
    from knowngood import table, units
    from knowngood.planning import Action

    lines = [
        table.text(
            ["", "cell", "action", "fetches", "adds to a registry", "layers only it has"],
            [_cell(number, cell) for number, cell in enumerate(made.cells, 1)],
        ),
        "",
        table.text(["layer", "action", "fetches", "in a registry", "cells"], [_layer(layer) for layer in made.layers]),
        "",
    ]
    lines += [f"{cell.cell}: {cell.note}" for cell in made.cells if cell.note]
    lines += [
        f"base {digest}: bootstrapped first, from Debian packages"
        for digest, action in made.bases.items()
        if action is Action.BUILD
    ]
    building, reusing = (
        [layer for layer in made.layers if layer.action is action] for action in (Action.BUILD, Action.REUSE)
    )
    lines.append(
        f"{len(building)} layers to build, {_sum(made.size)} in a registry; {units.text(made.download)} of wheels "
        f"to fetch; {len(reusing)} layers reused, {_sum(made.reused)}"
    )
    lines.append(
        f"reused is what {engine} has" if engine else "no engine was asked or answers: nothing counts as built"
    )
    return "\n".join(lines)


def _cell(number: int, cell: CellPlan) -> list[str]:
    from knowngood import units

    return [
        str(number),
        cell.cell,
        str(cell.action),
        units.text(cell.download),
        units.text(cell.adds),
        _listed(cell.only),
    ]


def _layer(layer: LayerPlan) -> list[str]:
    from knowngood import units

    return [layer.name, str(layer.action), units.text(layer.download), units.text(layer.size), str(len(layer.cells))]


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "none"


def _sum(size: tuple[int, int]) -> str:
    from knowngood import units

    total, unknown = size
    if not unknown:
        return units.text(total)
    return f"{units.text(total)} and {unknown} of unknown size" if total else "unknown"
