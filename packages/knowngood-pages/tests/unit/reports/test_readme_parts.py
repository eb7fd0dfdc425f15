from __future__ import annotations

from dataclasses import replace

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import UsageError
from knowngood.core.gpus import GpuMachine
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
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


V100 = GpuMachine(name="sm_70", sm="sm_70", host=DEFAULT_HOST, cards=("V100", "Titan V"), query="sm_70")


def row(answer, *, aliases=(), size=None, machine=V100):
    return readme_parts.ReadmeRow(cell=answer.cell, aliases=aliases, machine=machine, answer=answer, size=size)


def test_the_readme_has_the_best_cell_of_each_kind_of_machine():
    plain = CELL.without_framework()
    older = replace(plain, torch="2.9.0")
    h100 = GpuMachine(name="sm_90", sm="sm_90", host=DEFAULT_HOST, cards=("H100",), query="sm_90")
    arm = replace(h100, name="sm_90-aarch64", host=HostArchitecture.AARCH64, cards=("GH200",))
    rows = [
        row(CellAnswer(cell=replace(plain, host=HostArchitecture.AARCH64), tier=Tier.TRAINS_EMULATED), machine=arm),
        row(CellAnswer(cell=plain, tier=Tier.TRAINS_ON_GPU), machine=h100, aliases=["h100"]),
        row(CellAnswer(cell=CELL, tier=Tier.TRAINS_ON_GPU)),  # a trainer is asked for by its name
        row(CellAnswer(cell=plain, tier=Tier.TRAINS_ON_CPU)),
        row(CellAnswer(cell=older, tier=Tier.TRAINS_ON_CPU)),
    ]
    *_, v100, hopper, grace = readme_parts.render_card_table(rows).splitlines()
    assert v100 == f"| V100, Titan V | `{plain}` | CPU only |  |"
    assert hopper.startswith("| H100 | `h100` | ")
    assert grace.endswith("| emulated CPU only |  |")


def test_a_cell_is_a_row_of_the_table():
    seen = SettingState(kind=SettingStateKind.SEEN_ON_GPU, trains=True)
    refused = SettingState(kind=SettingStateKind.REFUSED, trains=False)
    answer = CellAnswer(cell=CELL, tier=Tier.TRAINS_ON_GPU, settings={"eager": seen, "sdpa": seen, "fa2": refused})
    known = row(answer, aliases=["v100"], size=2_720_000_000)
    locked = CellAnswer(cell=CELL, tier=Tier.RESOLVED)
    unknown = row(locked)
    on_cpu = {"sdpa": SettingState(kind=SettingStateKind.SEEN_ON_CPU, trains=True)}
    unseen = CellAnswer(cell=CELL, tier=Tier.TRAINS_ON_CPU, settings=on_cpu)
    rows = [known, unknown, row(unseen)]
    *_, first, second, third = readme_parts.render_cell_table(rows).splitlines()
    axes = "V100, Titan V (sm_70) | 12.8, 2.10.0 | 4.57.6 |  | xtuner 0.2.0"
    assert first == f"| `v100` | {axes} | seen training on a GPU | eager, sdpa | 2.72 GB |"
    assert second == f"|  | {axes} | locked, never built |  |  |"
    assert third == f"|  | {axes} | seen training on a CPU only; unseen on a GPU | on a CPU: sdpa |  |"
