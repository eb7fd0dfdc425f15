"""The cell that `run` and `engine warm` work in: the one that SELECT names, or the best one for this machine's GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.launch import run_choice
from knowngood.launch.run_choice import ANY_GPU

if TYPE_CHECKING:
    from knowngood.engine.probe_gpus import NvidiaState
    from knowngood.launch.run_choice import RunChoice
    from knowngood.project.checkout import Project


@dataclass(frozen=True, kw_only=True)
class CellForMachine:
    """A cell for this machine, and what it was chosen by."""

    project: Project
    nvidia: NvidiaState
    choice: RunChoice


def add_optional_select(parser: argparse.ArgumentParser) -> None:
    """Add SELECT, for commands that take the best cell for a GPU where it is missing."""
    parser.add_argument(
        "select",
        nargs="?",
        metavar="SELECT",
        help="a cell id, an alias, a glob or an axis filter (default: the best cell for the GPU)",
    )


def choose_cell_for_machine(
    select: str | None, *, gpu: str = ANY_GPU, attn: str | None = None, wanted: Sequence[str] = ()
) -> CellForMachine:
    """Return the best cell among those that SELECT selects, for a named GPU or for this machine's.

    One with a trainer that is among the requirements `wanted` comes first.

    Raises what `run_choice.choose_run_cell` does, and `UsageError` for what selects no cell.
    """
    from knowngood.core.attention import parse_attention
    from knowngood.engine import probe_gpus
    from knowngood.project.cell_answers import CellAnswers
    from knowngood.project.checkout import find_project

    project, nvidia = find_project(), probe_gpus.read_nvidia_state()
    matrix = project.matrix
    chooser = run_choice.RunChooser(matrix, matrix.gpu_catalog, CellAnswers(project))
    choice = chooser.choose(
        nvidia,
        matrix.select_cells([select]) if select else [],
        gpu=gpu,
        attn=parse_attention(attn) if attn else None,
        wanted=wanted,
    )
    return CellForMachine(project=project, nvidia=nvidia, choice=choice)
