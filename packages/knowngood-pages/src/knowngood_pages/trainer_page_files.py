"""Reads what the pages of trainers are rendered from: cells, records and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.core.formatting import format_bytes
from knowngood.smoke.suite_files import find_cell_suite, has_suite, hash_suite
from knowngood_pages.trainer_pages import TrainerCell, render_trainer_pages

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.project.checkout import Project
    from knowngood_facts.compat.matrix_cells import PublishedCells


def render_project_trainers(project: Project, published: PublishedCells) -> dict[str, str]:
    """Return the pages of a project's trainers, as Markdown by file name; none where it has no trainers or no suite.

    Args:
        project: it has the cells and their records.
        published: what is proven of the cells, by which runs.
    """
    if not has_suite(project.suite):
        return {}
    cells = [cell for cell in project.matrix.select_cells([]) if cell.framework_pin]
    items = [_describe_cell(project, published, cell) for cell in cells]
    return render_trainer_pages(items) if items else {}


def _describe_cell(project: Project, published: PublishedCells, cell: Cell) -> TrainerCell:
    record = project.tree.load_record(cell)
    return TrainerCell(
        cell=cell,
        machine=project.matrix.machine_of(cell),
        tier=published.tier(str(cell)),
        size=format_bytes(record.size) if record else "",
        image=record.manifest.digest if record else "",
        runs=published.valid_runs(str(cell)),
        suite=hash_suite(find_cell_suite(project, cell)),
    )
