"""The logs that were held out once: `diagnose` still says of each what is right, but for those that are listed here."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from knowngood.cli.main import main

ROOT = Path(__file__).parents[5]
LOGS = Path(__file__).parents[1] / "logs"
ORDINALS = [
    *("late", "third", "fourth", "fifth", "sixth", "seventh"),
    *("eighth", "ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fifteenth"),
    *("sixteenth", "seventeenth"),
]
CASES = [
    case
    for name in ("held_out", *(f"held_out_{ordinal}" for ordinal in ORDINALS))
    for case in yaml.safe_load((LOGS / f"{name}.yaml").read_text(encoding="utf-8"))
]
NOT_RIGHT = yaml.safe_load((LOGS / "not_right.yaml").read_text(encoding="utf-8"))
"""Thread -> what `diagnose` says of it instead of the right cause: `unknown`, `wrong` or `likely wrong`."""


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(shared_cache, monkeypatch):
    """One cache for this file: the incidents are parsed once."""
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(shared_cache))


@pytest.fixture(scope="module")
def judge():
    sys.path.insert(0, str(ROOT / "packages/knowngood-diagnose/benchmarks"))
    import held_out_logs

    return held_out_logs.judge_answer


def test_the_causes_are_as_right_as_recorded(judge, capsys, monkeypatch):
    breaches, right = [], 0
    for case in CASES:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(case["log"].encode())))
        code = main(["diagnose", "--json", "-"])
        judgement = judge(case, {**json.loads(capsys.readouterr().out), "exit": code})
        wanted = {"quiet"} if case["kind"] == "healthy" else {"right cause", "right remedy"}
        right += judgement in wanted
        if judgement not in ({NOT_RIGHT[case["thread"]]} if case["thread"] in NOT_RIGHT else wanted):
            breaches.append(f"{case['thread']} is {judgement}, not {NOT_RIGHT.get(case['thread'], 'right')}")
    recorded = len(CASES) - len(NOT_RIGHT)
    assert not breaches, "\n".join([f"{right} of {len(CASES)} are right, {recorded} are recorded", *breaches])
