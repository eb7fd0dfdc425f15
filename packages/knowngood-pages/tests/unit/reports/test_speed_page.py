from __future__ import annotations

from typing import Any

from knowngood.core.cell import Cell
from knowngood.evidence import speed_runs
from knowngood.evidence.cell_answer import CellAnswer, SettingState, SettingStateKind
from knowngood.evidence.run_evidence import Evidence, RunPlace, Tier
from knowngood_pages import speed_page

CELL = "sm90-cu130-torch2.11.0-tf5.17.0-fa2.8.3.post2-triton3.6.0-py312"


def _point(speed: float, *faults: str) -> dict[str, Any]:
    return {
        "outcome": "pass",
        "tokens_a_second": speed,
        "peak_bytes": 2**35,
        "share_of_limit": 0.355,
        "share_of_product": 0.44,
        "first_step_seconds": 2.0,
        "families": ["cudnn"],
        "faults": list(faults),
    }


POINTS = {
    "qwen2.5-1.5b/sdpa/4096x2": _point(34_000),
    "qwen2.5-1.5b/fa2/4096x2/compiled": _point(43_800),
    "qwen2.5-1.5b/fa2/4096x2/checkpointing": _point(51_000, "clocks fell: power brake"),
}


def _run(points: dict[str, Any], when: str, sm: str | None = "sm_90") -> tuple[str, Evidence]:
    report = {"environment": {"gpu": "NVIDIA H100 80GB HBM3", "sm": sm}, "points": points}
    run = Evidence(cell=CELL, where=RunPlace.BARE, image=None, when=when, node={"name": "a"}, command=(), report=report)
    return f"speed/{when}.json", run


def _answer(cell: Cell) -> CellAnswer:
    seen = SettingState(kind=SettingStateKind.SEEN_ON_GPU, trains=True)
    return CellAnswer(cell=cell, tier=Tier.RESOLVED, errors=(), settings=dict.fromkeys(["sdpa", "fa2"], seen), run=None)


def _render(*runs: tuple[str, Evidence]) -> dict[str, str]:
    return speed_page.render_speed_files(speed_runs.list_points(runs), _answer)


def test_the_page_says_what_is_fastest_and_how_far_runs_are_apart() -> None:
    again = {"qwen2.5-1.5b/sdpa/4096x2": _point(35_000)}
    page = _render(_run(POINTS, "a"), _run(again, "b"))["speed.md"]
    assert "fa2 with torch.compile: 1.29 of the default, 32 GiB" in page
    assert "(2 runs: 34,000 to 35,000)" in page
    assert "| clocks fell: power brake |" in page


def test_a_point_that_is_not_compared_is_in_no_plot_and_plots_have_the_same_bytes_twice() -> None:
    files = _render(_run(POINTS, "a"))
    plots = {name: text for name, text in files.items() if name.endswith(".svg")}
    assert list(plots) == ["speed/tokens-1.svg", "speed/memory-1.svg"]
    for text in plots.values():
        assert "fa2 compiled" in text
        assert "checkpointing" not in text
    assert files == _render(_run(POINTS, "a"))


def test_there_is_no_page_without_a_gpu() -> None:
    assert _render(_run(POINTS, "a", sm=None)) == {}
