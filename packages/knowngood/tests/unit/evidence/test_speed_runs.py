from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from knowngood.cli import bench
from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.evidence import run_evidence, speed_runs
from knowngood.evidence.cell_answer import CellAnswer, SettingState, SettingStateKind
from knowngood.evidence.run_evidence import Tier

CELL = parse_cell("sm90-cu130-torch2.11.0-tf5.17.0-fa2.8.3.post2-triton3.6.0-py312")
SHAPE = "qwen2.5-1.5b"


def _point(speed: float, *faults: str) -> dict[str, Any]:
    return {"outcome": "pass", "tokens_a_second": speed, "peak_bytes": 2**35, "faults": list(faults)}


def _report(points: dict[str, Any], node: str = "a", **parts: float) -> dict[str, Any]:
    return {
        "schema": speed_runs.SPEED_SCHEMA,
        "suite_hash": "0" * 64,
        "finished": "2026-11-28T14:00:00Z",
        "arguments": ["--plan", "table"],
        "node": {"name": node},
        "environment": {
            "gpu": "NVIDIA H200",
            "sm": "sm_90",
            "distributions": {"torch": "2.11.0", "transformers": "5.17.0", "flash-attn": "2.8.3.post2+cu13torch2.11"},
            "python": "3.12.3",
        },
        "parts": {"outcome": "pass", "faults": [], **parts},
        "points": points,
        "checks": [],
        "verdict": {"ok": True, "domain": "none", "text": ""},
    }


POINTS = {
    f"{SHAPE}/sdpa/4096x2": _point(34.0),
    f"{SHAPE}/fa2/4096x2/compiled": _point(43.8),
    f"{SHAPE}/sdpa/4096x4/compiled/causal": _point(51.0),
    f"{SHAPE}/flex/4096x2/compiled": _point(60.0),
    f"{SHAPE}/fa2/4096x2/compiled/chunked": _point(50.0, "another process ran on the card"),
    f"{SHAPE}/fa2/4096x2/packed": _point(90.0),
    f"{SHAPE}/fa2/8192x1": _point(99.0),
    f"{SHAPE}/fa4/4096x2": {"outcome": "not-run", "reason": "flash_attn.cute cannot be imported"},
}


def _answer(cell: Cell) -> CellAnswer:
    seen = SettingState(kind=SettingStateKind.SEEN_ON_GPU, trains=True)
    wrong = SettingState(kind=SettingStateKind.WRONG, trains=False)
    predicted = SettingState(kind=SettingStateKind.PREDICTED, trains=True)
    settings = {"sdpa": seen, "fa2": seen, "flex": wrong}
    settings = settings if cell == CELL else {**dict.fromkeys(settings, predicted), "flex": wrong}
    return CellAnswer(cell=cell, tier=Tier.TRAINS_ON_GPU, errors=(), settings=settings, run=None)


def _advise(evidence: Path, cell: str = str(CELL)) -> str:
    points = speed_runs.list_points(speed_runs.load_speed_runs(evidence)[0])
    return speed_runs.advise_on_speed(points, parse_cell(cell), _answer)


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    _store(tmp_path, _report(POINTS))
    return tmp_path / "evidence"


def _store(folder: Path, report: dict[str, Any]) -> Path:
    path = folder / "report.json"
    path.write_text(json.dumps(report))
    return run_evidence.store_evidence(bench.read_speed_report(path, CELL), folder / "evidence/speed")


def test_the_fastest_that_is_right_is_named_with_its_memory_and_its_card(evidence: Path) -> None:
    assert _advise(evidence) == (
        "fastest (NVIDIA H200, qwen2.5-1.5b, 4096 tokens, 2026-11-28): fa2 with torch.compile: 1.29 of the default, "
        "32 GiB; with code of your own, sdpa with torch.compile and no mask but the kernel's own: 1.50 of the default, "
        "32 GiB"
    )


def test_advice_holds_for_another_python_and_names_the_cell_that_ran_for_another_release(evidence: Path) -> None:
    assert _advise(evidence, str(CELL).replace("py312", "py311")) == _advise(evidence)
    assert f", in {CELL}): fa2 with" in _advise(evidence, str(CELL).replace("tf5.17.0", "tf5.23.0"))
    assert not _advise(evidence, str(CELL).replace("torch2.11.0", "torch2.15.0"))


def test_a_file_that_was_changed_does_not_count(evidence: Path) -> None:
    (path,) = evidence.glob("speed/*/*.json")
    path.write_text(path.read_text().replace("43.8", "83.8"))
    runs, left_out = speed_runs.load_speed_runs(evidence)
    assert not runs
    assert "forged or damaged" in left_out[0]


def test_a_report_of_another_environment_is_refused(tmp_path: Path) -> None:
    report = _report(POINTS)
    report["environment"]["distributions"] |= {"transformers": "5.23.0", "flash-attn": "2.8.3"}
    with pytest.raises(KnowngoodError, match=r"is no run of .*: transformers 5\.23\.0, flash-attn 2\.8\.3$"):
        _store(tmp_path, report)
    with pytest.raises(UsageError, match="is no report of the speed suite"):
        _store(tmp_path, {})


def test_known_good_is_the_median_over_nodes_without_what_was_disturbed(tmp_path: Path) -> None:
    reports = [_report({}, node, product_tflops=value) for node, value in (("a", 790), ("a", 794), ("a", 700))]
    reports[2]["parts"]["card_id"] = "another card, in a machine of the same name"
    disturbed = _report({}, "c", product_tflops=100)
    disturbed["parts"]["faults"] = ["clocks fell: thermal slowdown"]
    runs = []
    for number, report in enumerate([*reports, disturbed]):
        report["finished"] = f"2026-11-28T14:00:0{number}Z"
        runs.append(run_evidence.load_evidence(_store(tmp_path, report)))
    known = speed_runs.known_good_parts(runs, "NVIDIA H200")
    assert known == {"product_tflops": ((792 + 700) / 2, 2)}
    assert not speed_runs.known_good_parts(runs, "NVIDIA H100")
