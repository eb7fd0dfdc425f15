from __future__ import annotations

import pytest

from knowngood import readme
from knowngood.cell import parse
from knowngood.errors import UsageError

CELL = parse("sm70-cu128-torch2.10.0-tf4.57.6-fa0-triton3.6.0-py311-xtuner0.2.0")
MARKED = "before\n<!-- cells: rendered -->\nold\n<!-- cells: end -->\nafter\n"


def test_what_stands_between_the_markers_is_replaced():
    assert readme.replaced(MARKED, "cells", "new") == MARKED.replace("old", "new")


@pytest.mark.parametrize("text", ["", "<!-- cells: rendered -->", "<!-- cells: end --> <!-- cells: rendered -->"])
def test_lost_markers_are_told(text):
    with pytest.raises(UsageError, match="cells: rendered"):
        readme.replaced(text, "cells", "new")


def test_a_cell_is_a_row_of_what_is_known_of_it():
    known = readme.Row(cell=CELL, aliases=["v100"], tier="built", trains=["eager", "sdpa"], size=2_720_000_000)
    unknown = readme.Row(cell=CELL, aliases=[], tier="resolved", trains=[], size=None)
    *_, first, second = readme.cells([known, unknown]).splitlines()
    assert first == "| `v100` | sm_70 | 12.8, 2.10.0 | 4.57.6 |  | xtuner 0.2.0 | built | eager, sdpa | 2.72 GB |"
    assert second == "|  | sm_70 | 12.8, 2.10.0 | 4.57.6 |  | xtuner 0.2.0 | resolved |  |  |"
