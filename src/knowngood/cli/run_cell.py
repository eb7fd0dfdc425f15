"""The cell that `run` and `warm` work in: the one that SELECT names, or the best one for this machine's GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.launch import run_choice
from knowngood.launch.run_choice import ANY_GPU

if TYPE_CHECKING:
    from knowngood.compat.knowledge import CompatKnowledge
    from knowngood.doctor.system_state import NvidiaState
    from knowngood.launch.run_choice import RunChoice
    from knowngood.project.checkout import Project


@dataclass(frozen=True, kw_only=True)
class CellForMachine:
    """A cell for this machine, and what it was chosen by."""

    project: Project
    known: CompatKnowledge
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
    from knowngood.compat import knowledge, query
    from knowngood.doctor import probe_gpus
    from knowngood.project.checkout import find_project

    project, known, nvidia = find_project(), knowledge.load_knowledge(), probe_gpus.read_nvidia_state()
    choice = run_choice.choose_run_cell(
        known,
        nvidia,
        project.matrix.select_cells([select]) if select else [],
        gpu=gpu,
        attn=query.parse_attention(attn) if attn else None,
        wanted=wanted,
    )
    return CellForMachine(project=project, known=known, nvidia=nvidia, choice=choice)
