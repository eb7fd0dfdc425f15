"""The corpus of judged logs: on no set `diagnose` is worse than that set's floor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import held_out_logs

LOGS = Path(__file__).parents[1] / "logs"
FLOORS = yaml.safe_load((LOGS / "floors.yaml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def own_cache(module_cache, monkeypatch):
    """One cache for this file: the incidents are parsed once."""
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(module_cache))


def test_each_set_has_a_floor():
    assert {path.stem for path in held_out_logs.list_sets()} == set(FLOORS)


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_a_set_keeps_its_floor(name):
    _, score = held_out_logs.score_set(LOGS / f"{name}.yaml")
    assert not held_out_logs.find_shortfalls(score, FLOORS[name])


def test_a_worse_score_is_a_shortfall():
    floor = {"cause": 5, "remedy": 4, "wrong": 0, "alarms": 0}
    assert not held_out_logs.find_shortfalls(floor, floor)
    assert len(held_out_logs.find_shortfalls({"cause": 4, "remedy": 3, "wrong": 1, "alarms": 1}, floor)) == 4
