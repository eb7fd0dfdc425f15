from __future__ import annotations

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import UsageError
from knowngood.evidence.cell_answer import CellAnswer, SettingState, SettingStateKind
from knowngood.evidence.run_evidence import Tier
from knowngood_pages import readme_parts

CELL = parse_cell("sm70-cu128-torch2.10.0-tf4.57.6-fa0-triton3.6.0-py311-xtuner0.2.0")
MARKED = "before\n<!-- cells: rendered -->\nold\n<!-- cells: end -->\nafter\n"


def test_the_text_between_the_markers_is_replaced():
    assert readme_parts.replace_marked_part(MARKED, "cells", "new") == MARKED.replace("old", "new")


@pytest.mark.parametrize("text", ["", "<!-- cells: rendered -->", "<!-- cells: end --> <!-- cells: rendered -->"])
def test_missing_markers_are_reported(text):
    with pytest.raises(UsageError, match="cells: rendered"):
        readme_parts.replace_marked_part(text, "cells", "new")


def test_a_cell_is_a_row_of_the_table():
    seen = SettingState(kind=SettingStateKind.SEEN_ON_GPU, trains=True)
    refused = SettingState(kind=SettingStateKind.REFUSED, trains=False)
    answer = CellAnswer(cell=CELL, tier=Tier.TRAINS_ON_GPU, settings={"eager": seen, "sdpa": seen, "fa2": refused})
    known = readme_parts.ReadmeRow(cell=CELL, aliases=["v100"], answer=answer, size=2_720_000_000)
    locked = CellAnswer(cell=CELL, tier=Tier.RESOLVED)
    unknown = readme_parts.ReadmeRow(cell=CELL, aliases=[], answer=locked, size=None)
    on_cpu = {"sdpa": SettingState(kind=SettingStateKind.SEEN_ON_CPU, trains=True)}
    unseen = CellAnswer(cell=CELL, tier=Tier.TRAINS_ON_CPU, settings=on_cpu)
    rows = [known, unknown, readme_parts.ReadmeRow(cell=CELL, aliases=[], answer=unseen, size=None)]
    *_, first, second, third = readme_parts.render_cell_table(rows).splitlines()
    axes = "sm_70 | 12.8, 2.10.0 | 4.57.6 |  | xtuner 0.2.0"
    assert first == f"| `v100` | {axes} | seen training on a GPU | eager, sdpa | 2.72 GB |"
    assert second == f"|  | {axes} | locked, never built |  |  |"
    assert third == f"|  | {axes} | seen training on a CPU only; unseen on a GPU | on a CPU: sdpa |  |"
