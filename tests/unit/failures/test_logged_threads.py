"""The logs that were held out once: `diagnose` still says of each what is right, but for those that are listed here."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from knowngood.cli.main import main

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "tests" / "unit" / "logs"
CASES = [
    case
    for name in ("held_out.yaml", "held_out_late.yaml")
    for case in yaml.safe_load((LOGS / name).read_text(encoding="utf-8"))
]
NOT_RIGHT = {
    "unslothai/unsloth#3415": "unknown",
    "QwenLM/Qwen3#434": "unknown",
    "huggingface/transformers#33620": "unknown",
    "huggingface/trl#3480": "wrong",
    "Tencent-Hunyuan/Hunyuan-GameCraft-1.0#24": "unknown",
    "huggingface/trl#2997": "unknown",
    "huggingface/transformers#34427": "wrong",
    "predibase/lorax#252": "unknown",
    "cre185/InstantSfM#18": "wrong",
    "pytorch/pytorch#165812": "wrong",
    "yangjianxin1/Firefly#258": "unknown",
    "kijai/ComfyUI-Florence2#199": "unknown",
    "huggingface/transformers#7974": "unknown",
}
"""Thread -> what `diagnose` says of it instead of the right cause: `unknown` or `wrong`."""


@pytest.fixture(scope="module")
def judge():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import held_out_logs

    return held_out_logs.judge_answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["thread"])
def test_the_cause_is_right(case, judge, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(case["log"].encode())))
    code = main(["diagnose", "--json", "-"])
    answer = {**json.loads(capsys.readouterr().out), "exit": code}
    right = {"quiet"} if case["kind"] == "healthy" else {"right cause", "right remedy"}
    assert judge(case, answer) in ({NOT_RIGHT[case["thread"]]} if case["thread"] in NOT_RIGHT else right)
