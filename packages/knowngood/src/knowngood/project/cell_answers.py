"""What is known of the cells of a project, and `docker/judgements.json`, where the judgement of each is kept.

The distribution that knows rules and facts judges cells; `lock`, `render` and `add` write down what it says. Every
other command reads that, so that it needs neither rules nor facts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from knowngood.core import extensions
from knowngood.core.cell import Cell
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError, InputProblem, KnowngoodError
from knowngood.evidence import speed_runs
from knowngood.evidence.cell_answer import (
    UNJUDGED,
    BrokenCellError,
    CellAnswer,
    CellError,
    CellJudgement,
    CellWarning,
    PredictedRefusal,
    UnjudgedCellError,
    answer_about_cell,
)
from knowngood.evidence.cell_runs import CellRuns, read_cell_runs
from knowngood.evidence.cell_standing import CellStanding
from knowngood.evidence.speed_runs import SpeedPoint
from knowngood.project.checkout import Project, read_matrix_text

JUDGEMENTS_FILE = "docker/judgements.json"
_SCHEMA = "knowngood/judgements/2"


@dataclass(frozen=True, kw_only=True)
class CellJudgements:
    """What rules and facts say of the cells of a project."""

    cells: Mapping[str, CellJudgement] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What concerns all cells: waivers in matrix.yaml that no cell needs, rules and facts that nobody signed."""
    matrix: str = ""
    """The SHA-256 of the matrix.yaml that they are about."""

    def render(self) -> str:
        """Return the text of `docker/judgements.json`."""
        cells = {
            name: {
                "errors": [dict(error.finding) for error in item.errors],
                "refusals": {setting: asdict(refusal) for setting, refusal in item.refusals.items()},
                "doubts": {setting: asdict(refusal) for setting, refusal in item.doubts.items()},
                "warnings": [asdict(warning) for warning in item.warnings],
                "drivers": item.drivers,
            }
            for name, item in sorted(self.cells.items())
        }
        document = {"schema": _SCHEMA, "matrix": self.matrix, "notes": list(self.notes), "cells": cells}
        return json.dumps(document, indent=1) + "\n"


def parse_judgements(text: str, file: str = JUDGEMENTS_FILE) -> CellJudgements:
    """Read the text of `docker/judgements.json`; raises `InputError` where it is damaged."""
    try:
        stored = json.loads(text)
        _ = {_SCHEMA: True}[stored["schema"]]
        cells = {name: _parse_judgement(item) for name, item in stored["cells"].items()}
        return CellJudgements(cells=cells, notes=tuple(map(str, stored["notes"])), matrix=str(stored["matrix"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        words = f"not readable as judgements of cells ({type(error).__name__}); write it again with `knowngood render`"
        raise InputError([InputProblem(file=file, line=1, column=1, text=words)]) from None


def _parse_judgement(stored: Mapping[str, Any]) -> CellJudgement:
    errors = (CellError(id=str(item["id"]), because=str(item["because"]), finding=item) for item in stored["errors"])
    return CellJudgement(
        errors=tuple(errors),
        refusals={name: PredictedRefusal(**item) for name, item in stored["refusals"].items()},
        doubts={name: PredictedRefusal(**item) for name, item in stored["doubts"].items()},
        warnings=tuple(CellWarning(**item) for item in stored["warnings"]),
        drivers=str(stored["drivers"]),
    )


def digest_matrix(root: Path) -> str:
    """Return the SHA-256 of a project's matrix.yaml, which judgements name."""
    return hashlib.sha256(read_matrix_text(root).encode()).hexdigest()


def judge_cells(project: Project, cells: Iterable[Cell]) -> CellJudgements | None:
    """Return what rules and facts say of cells now; `None` where no distribution that knows them is installed."""
    judge = extensions.load_extension(extensions.JUDGE_CELLS)
    if judge is None:
        return None
    judgements: CellJudgements = judge(project, list(cells))
    return judgements


@dataclass(frozen=True)
class CellAnswers:
    """Answers about the cells of a project, from its runs, its locks and the judgements that are kept."""

    project: Project
    renewed: CellJudgements | None = None
    """Judgements in the place of those that are kept."""

    @cached_property
    def judgements(self) -> CellJudgements:
        """The judgements that are kept; those of another matrix.yaml are renewed, where that is possible."""
        if self.renewed is not None:
            return self.renewed
        try:
            kept = parse_judgements(read_data_text(self.project.root / JUDGEMENTS_FILE, JUDGEMENTS_FILE))
        except FileNotFoundError:
            kept = CellJudgements()
        if kept.matrix == digest_matrix(self.project.root):
            return kept
        stale = f"{JUDGEMENTS_FILE} is of another matrix.yaml; knowngood-facts, which judges cells, would renew it"
        return judge_cells(self.project, self.project.matrix.cells) or replace(kept, notes=(*kept.notes, stale))

    @cached_property
    def runs(self) -> Mapping[str, CellRuns]:
        """The runs of each cell that has some."""
        return read_cell_runs(self.project.evidence, self.project.seal)

    def standing(self, cell: str) -> CellStanding:
        """Return what the runs of a cell prove."""
        return self.runs[cell].standing if cell in self.runs else CellStanding()

    @cached_property
    def _locked(self) -> frozenset[str]:
        return self.project.tree.locked()

    @cached_property
    def _recorded(self) -> frozenset[str]:
        return self.project.tree.recorded()

    def judgement(self, cell: Cell) -> CellJudgement:
        """Return what rules and facts say of a cell; of one that is not kept, what they say now.

        Where nobody can say it, the error is `UNJUDGED`.
        """
        kept = self.judgements.cells.get(str(cell))
        if kept is None and (judged := judge_cells(self.project, [cell])):
            kept = judged.cells.get(str(cell))
        return kept or CellJudgement(errors=(UNJUDGED,))

    @cached_property
    def speed_points(self) -> Sequence[SpeedPoint]:
        """The points that the runs of the speed suite measured."""
        return speed_runs.list_points(speed_runs.load_speed_runs(self.project.evidence, self.project.seal)[0])

    def speed_advice(self, cell: Cell) -> str:
        """Return what was measured to be fastest in a cell, in one line; empty where nothing was."""
        return speed_runs.advise_on_speed(self.speed_points, cell, self.answer)

    def answer(self, cell: Cell) -> CellAnswer:
        """Return what is known of a cell."""
        name = str(cell)
        return answer_about_cell(
            self.judgement(cell),
            cell,
            self.standing(name),
            locked=name in self._locked,
            recorded=name in self._recorded,
        )


def split_broken_cells(
    project: Project, cells: Sequence[Cell], *, renew: bool = False
) -> tuple[list[Cell], dict[str, KnowngoodError]]:
    """Return the cells that the rules allow, and cell id -> why the others are refused, or that nobody judged them.

    Every command that makes something of a cell asks this first. With `renew`, the cells are judged now, where that is
    possible, and not by what is kept.
    """
    judged = judge_cells(project, cells) if renew else None
    answers = CellAnswers(project, judged)
    broken: dict[str, KnowngoodError] = {}
    for cell in cells:
        errors = answers.judgement(cell).errors
        if errors:
            broken[str(cell)] = UnjudgedCellError(cell) if UNJUDGED in errors else BrokenCellError(cell, errors)
    return [cell for cell in cells if str(cell) not in broken], broken
