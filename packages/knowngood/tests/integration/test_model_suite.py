"""The model suite with a real torch on the CPU: right settings pass, a dropped rule and one percent are noticed.

`KNOWNGOOD_SMOKE_PYTHON` names an interpreter that has torch and transformers; without it, the tests' own is used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[4]
SUITES = str(ROOT / "smoke_tests")
PYTHON = os.environ.get("KNOWNGOOD_SMOKE_PYTHON", sys.executable)
WITHOUT_WINDOW = """
import sys
import model_tests.attention_formulas as formulas
from model_tests import worker
plain = formulas.rule_of
formulas.rule_of = lambda config, module: formulas.AttentionRule(**{**plain(config, module).__dict__, "window": None})
worker.worker.main()
"""


@pytest.fixture(scope="module", autouse=True)
def torch_is_there():
    if subprocess.run([PYTHON, "-c", "import torch, transformers"], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no torch and transformers: name one that has in KNOWNGOOD_SMOKE_PYTHON")


def run_suite(tmp_path, *arguments):
    """Run a part of the suite; returns the exit status and the outcome and reason of each check."""
    report = tmp_path / "report.json"
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": SUITES,
        "OMP_NUM_THREADS": "1",
    }
    command = [PYTHON, "-m", "model_tests", "--report", str(report), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    assert report.exists(), done.stdout + done.stderr
    document = json.loads(report.read_text())
    return done.returncode, {check["id"]: (check["outcome"], check["reason"]) for check in document["checks"]}


def test_one_percent_is_noticed_in_bf16_and_right_kernels_pass(tmp_path):
    arguments = ("--family", "qwen2", "--setting", "sdpa", "--dtype", "bf16", "--layout", "dense")
    status, checks = run_suite(tmp_path, *arguments)
    checks = {name: outcome for name, (outcome, _) in checks.items() if "/speed/" not in name}
    assert set(checks.values()) == {"pass"}
    assert {"qwen2/fault/scale-1-percent/sdpa/bf16/dense", "qwen2/sdpa/bf16/dense"} <= set(checks)
    assert status == 0


def test_a_window_and_seams_are_kept_under_sdpa(tmp_path):
    arguments = ("--family", "mistral", "--setting", "sdpa", "--dtype", "fp32", "--layout", "packed")
    status, checks = run_suite(tmp_path, *arguments)
    assert checks["mistral/sdpa/fp32/packed"] == ("pass", "")
    assert checks["mistral/formulas/fp32/right-padded"] == ("pass", "")
    assert status == 0


def test_attention_that_differs_from_the_configuration_is_silently_wrong(tmp_path):
    """The formulas are told of no window: to them, the model's own window is a fault."""
    worker = tmp_path / "worker.py"
    worker.write_text(WITHOUT_WINDOW)
    program = (
        "import sys; from model_tests import __main__ as suite;"
        f"suite.WORKER = [sys.executable, '-u', {str(worker)!r}]; sys.exit(suite.main())"
    )
    report = tmp_path / "report.json"
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": SUITES,
        "OMP_NUM_THREADS": "1",
    }
    arguments = ["--family", "mistral", "--setting", "eager", "--dtype", "fp32", "--layout", "dense"]
    command = [PYTHON, "-c", program, "--report", str(report), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes = {check["id"]: check for check in json.loads(report.read_text())["checks"]}
    assert outcomes["mistral/formulas/fp32/right-padded"]["outcome"] == "fail"
    assert outcomes["mistral/eager/fp32/dense"]["silent"] is True


def test_a_model_type_that_transformers_does_not_know_is_said_so(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nobody-knows"}')
    status, checks = run_suite(tmp_path, "--config", str(tmp_path / "config.json"))
    assert (status, checks) == (3, {})


@pytest.mark.parametrize(
    ("model_type", "layout", "words"),
    [
        ("falcon", "packed", "the sequences of a row are not kept apart"),
        ("gpt2", "left-padded", "positions count the padding before a sequence"),
    ],
)
def test_what_is_wrong_outside_attention_is_said(tmp_path, model_type, layout, words):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": model_type}))
    arguments = ("--config", str(config), "--setting", "eager", "--dtype", "fp32", "--layout", layout)
    status, checks = run_suite(tmp_path, *arguments)
    outcome, reason = checks[f"{model_type}/eager/fp32/{layout}"]
    assert (status, outcome) == (1, "fail")
    assert words in reason


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "bert"}, "is no causal model (its configuration says is_decoder: false)"),
        ({"model_type": "bart"}, "has an encoder and a decoder"),
    ],
)
def test_a_model_that_sees_what_comes_later_is_none_to_try(tmp_path, config, words):
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = tmp_path / "report.json"
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": SUITES,
        "OMP_NUM_THREADS": "1",
    }
    command = [PYTHON, "-m", "model_tests", "--report", str(report), "--config", str(tmp_path / "config.json")]
    subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    problem = json.loads(report.read_text())["problem"]
    assert problem["kind"] == "not-causal"
    assert words in problem["text"]


def test_a_model_without_attention_has_no_setting_to_choose(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "bamba", "num_hidden_layers": 2}))
    arguments = ("--config", str(config), "--setting", "sdpa", "--dtype", "fp32", "--layout", "right-padded")
    _, checks = run_suite(tmp_path, *arguments)
    asked = "no layer of this model asks transformers for attention, so this setting changes nothing"
    assert checks["bamba/sdpa/fp32/right-padded"] == ("not-run", asked)
