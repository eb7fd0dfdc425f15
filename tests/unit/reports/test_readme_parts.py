from __future__ import annotations

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import UsageError
from knowngood.reports import readme_parts

CELL = parse_cell("sm70-cu128-torch2.10.0-tf4.57.6-fa0-triton3.6.0-py311-xtuner0.2.0")
MARKED = "before\n<!-- cells: rendered -->\nold\n<!-- cells: end -->\nafter\n"


def test_the_text_between_the_markers_is_replaced():
    assert readme_parts.replace_marked_part(MARKED, "cells", "new") == MARKED.replace("old", "new")


@pytest.mark.parametrize("text", ["", "<!-- cells: rendered -->", "<!-- cells: end --> <!-- cells: rendered -->"])
def test_missing_markers_are_reported(text):
    with pytest.raises(UsageError, match="cells: rendered"):
        readme_parts.replace_marked_part(text, "cells", "new")


def test_a_cell_is_a_row_of_the_table():
    known = readme_parts.ReadmeRow(
        cell=CELL, aliases=["v100"], tier="built", trains=["eager", "sdpa"], size=2_720_000_000
    )
    unknown = readme_parts.ReadmeRow(cell=CELL, aliases=[], tier="resolved", trains=[], size=None)
    *_, first, second = readme_parts.render_cell_table([known, unknown]).splitlines()
    assert first == "| `v100` | sm_70 | 12.8, 2.10.0 | 4.57.6 |  | xtuner 0.2.0 | built | eager, sdpa | 2.72 GB |"
    assert second == "|  | sm_70 | 12.8, 2.10.0 | 4.57.6 |  | xtuner 0.2.0 | resolved |  |  |"
