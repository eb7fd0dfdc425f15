"""A retired cell is never offered by `pick`, and what `check` and `pick` answer about one names its successor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from knowngood.core.cell import Cell
from knowngood.core.matrix_entries import Retirement
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import check_query
from knowngood_facts.compat.matrix_cells import PublishedCells
from knowngood_facts.compat.pick_answer import pick_cells
from knowngood_facts.compat.query import Query, query_from_document

KNOWN = knowledge.load_knowledge()
OLD = next(cell for cell in KNOWN.published.cells if cell.gpu == "sm_70")
FRAMEWORK = next(cell for cell in KNOWN.published.cells if cell.framework.startswith("xtuner0.1"))
NEW = "sm75-cu132-torch2.15.0-tf5.23.0-fa0-triton3.9.0-py311"


def without(*retired: Cell) -> PublishedCells:
    left = tuple(cell for cell in KNOWN.published.cells if cell not in retired)
    return replace(
        KNOWN.published, cells=left, retired=dict.fromkeys(retired, Retirement(on="2026-11-01", successor=NEW))
    )


def exactly(cell: Cell) -> Query:
    packages = {"torch": cell.torch, "transformers": cell.transformers, "triton": cell.triton}
    packages |= {"flash-attn": "none", "flash-attn-4": "none"} | dict(
        [cell.framework_pin] if cell.framework_pin else []
    )
    return query_from_document({"gpu": cell.gpu, "python": cell.python, "packages": packages})


@pytest.mark.parametrize("cell", [OLD, FRAMEWORK], ids=str)
def test_check_of_a_retired_cell_names_its_successor(cell):
    request = exactly(cell)
    before = check_query(KNOWN.universe, request, KNOWN.published)
    assert (before.cell, before.notes) == (str(cell), ())
    answer = check_query(KNOWN.universe, request, without(cell))
    assert answer.verdict == before.verdict
    assert answer.cell is None
    assert answer.notes == (f"{cell} was retired on 2026-11-01; its successor is {NEW}",)


def test_check_of_something_else_says_nothing_of_retired_cells():
    request = query_from_document({"gpu": "sm_90", "packages": {"torch": "2.11.0", "transformers": "5.17.0"}})
    answer = check_query(KNOWN.universe, request, without(OLD))
    assert answer.cell
    assert answer.notes == ()


@pytest.mark.parametrize("cell", [OLD, FRAMEWORK], ids=str)
def test_pick_never_offers_a_retired_cell(cell):
    request = exactly(cell)
    assert pick_cells(KNOWN.universe, request, KNOWN.published).choices[0].cell == cell
    answer = pick_cells(KNOWN.universe, request, without(cell), count=100)
    assert not answer.choices
    assert not answer.conflict
    assert answer.exit_code == 1
    assert [finding.because for finding in answer.findings] == [
        f"{cell} was retired on 2026-11-01; its successor is {NEW}"
    ]


def test_pick_offers_the_next_best_beside_a_retired_cell():
    newest = pick_cells(KNOWN.universe, Query(gpu="V100"), PublishedCells(), count=100).choices
    retired = newest[0].cell
    answer = pick_cells(KNOWN.universe, Query(gpu="V100"), without(retired), count=100)
    assert OLD in [choice.cell for choice in answer.choices]
    assert retired not in [choice.cell for choice in answer.choices]
