"""The gate of every command that makes something of cells: a cell that the rules forbid is refused."""

from __future__ import annotations

from collections.abc import Sequence

from knowngood.compat import knowledge
from knowngood.compat.cell_answer import BrokenCellError
from knowngood.core.cell import Cell
from knowngood.project.checkout import Project


def split_broken_cells(project: Project, cells: Sequence[Cell]) -> tuple[list[Cell], dict[str, BrokenCellError]]:
    """Return the cells that the rules allow, and cell id -> why the others are refused."""
    answers = knowledge.judge_cells(knowledge.load_knowledge(), project.matrix, cells)
    broken = {name: BrokenCellError(answer.cell, answer.errors) for name, answer in answers.items() if answer.broken}
    return [cell for cell in cells if str(cell) not in broken], broken
