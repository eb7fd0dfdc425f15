"""The cell that `run` works in: the one that SELECT names, or the best one for this machine's GPU."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.cli.run_image import ImageAdditions
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.launch import run_choice
from knowngood.launch.added_packages import UnfitCellError
from knowngood.launch.run_choice import ANY_GPU
from knowngood.lock.cell_locking import NoWheelError

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.engine.container_engine import Engine
    from knowngood.engine.probe_gpus import NvidiaState
    from knowngood.launch.cell_verdict import CellVerdict, CellVerdicts
    from knowngood.launch.run_choice import RunChoice
    from knowngood.project.checkout import Project


@dataclass(frozen=True, kw_only=True)
class CellRequest:
    """What a cell is chosen by."""

    select: str | None = None
    gpu: str = ANY_GPU
    attn: str | None = None
    wanted: Sequence[str] = ()
    """Requirements; a cell with a trainer among them comes first."""
    may_compile: bool = False
    """Whether a cell counts that needs a wheel which is nowhere; others come before it in any case."""


@dataclass(frozen=True, kw_only=True)
class CellForMachine:
    """A cell for this machine, and what it was chosen by."""

    project: Project
    nvidia: NvidiaState
    choice: RunChoice
    verdict: CellVerdict
    additions: ImageAdditions = field(default_factory=ImageAdditions)
    passed: tuple[str, ...] = ()
    """Why cells that are better proven or newer were passed over, as sentences."""
    speed: str = ""
    """What was measured to be fastest in the cell, in a line; empty where nothing was."""


def add_optional_select(parser: argparse.ArgumentParser) -> None:
    """Add SELECT, for commands that take the best cell for a GPU where it is missing."""
    parser.add_argument(
        "select",
        nargs="?",
        metavar="SELECT",
        help="a cell id, an alias, a glob or an axis filter (default: the best cell for the GPU)",
    )


def choose_cell_for_machine(
    request: CellRequest,
    engine: Engine | None,
    examine: Callable[[Project, Cell], ImageAdditions] = lambda _project, _cell: ImageAdditions(),
) -> CellForMachine:
    """Return the best cell whose image can be had here, and to which `examine` can add what is wanted.

    Args:
        request: what the cell is chosen by.
        engine: the engine whose layers count as being here.
        examine: returns what a cell gets besides; raises `UnfitCellError` where it cannot get that.

    Raises:
        MissingError: a cell would do, but needs a wheel that must be compiled first.
        KnowngoodError: no cell fits.
        UsageError: the SELECT selects no cell, or several for no GPU.
    """
    from knowngood.core.attention import parse_attention
    from knowngood.engine import probe_gpus
    from knowngood.launch.cell_verdict import CellVerdicts
    from knowngood.project.cell_answers import CellAnswers
    from knowngood.project.checkout import find_project

    project, nvidia = find_project(), probe_gpus.read_nvidia_state()
    matrix, answers = project.matrix, CellAnswers(project)
    choices = run_choice.RunChooser(matrix, matrix.gpu_catalog, answers).list_choices(
        nvidia,
        matrix.select_cells([request.select]) if request.select else [],
        gpu=request.gpu,
        attn=parse_attention(request.attn) if request.attn else None,
        wanted=request.wanted,
    )
    refusals: list[KnowngoodError] = []
    for choice, verdict in _order_by_cost(choices, CellVerdicts(answers, engine, os.environ)):
        try:
            if not request.may_compile:
                verdict.require_wheels()
            additions = examine(project, choice.cell)
        except (UnfitCellError, NoWheelError) as error:
            refusals.append(error)
            continue
        return CellForMachine(
            project=project,
            nvidia=nvidia,
            choice=choice,
            verdict=verdict,
            additions=additions,
            passed=tuple(map(str, refusals)),
            speed=answers.speed_advice(choice.cell),
        )
    kind = MissingError if any(isinstance(error, MissingError) for error in refusals) else KnowngoodError
    reasons = ["no cell of matrix.yaml can be had for this:"] * (len(refusals) > 1) + list(map(str, refusals))
    if not request.select and kind is KnowngoodError:
        gpu = request.gpu if request.gpu != ANY_GPU else choices[0].cell.gpu
        words = ["--gpu", gpu, *(["--attn", request.attn] if request.attn else []), *request.wanted]
        reasons.append(f"`{shlex.join(['knowngood', 'pick', *words])}` looks for one that can be added")
    raise kind("\n".join(reasons))


def _order_by_cost(choices: Sequence[RunChoice], verdicts: CellVerdicts) -> Iterator[tuple[RunChoice, CellVerdict]]:
    """Yield the choices with their verdicts, those last for which something must be compiled first."""
    later = []
    for choice in choices:
        verdict = verdicts.judge(choice.cell)
        if verdict.compiled:
            later.append((choice, verdict))
        else:
            yield choice, verdict
    yield from later
