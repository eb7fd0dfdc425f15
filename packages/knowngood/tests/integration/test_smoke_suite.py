"""The smoke suite itself, with a real torch on the CPU: what it must notice, and what it must survive.

`KNOWNGOOD_SMOKE_PYTHON` names an interpreter that has torch, transformers and pytest; without it, the tests' own.
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
SUITES = ROOT / "smoke_tests"
PYTHON = os.environ.get("KNOWNGOOD_SMOKE_PYTHON", sys.executable)
UNNOTICED = """
import json
from smoke_tests import mutants, worker
mutants.MUTANTS["harmless"] = (lambda trainee: None, ".")
check = {"topic": "mutant", "detail": "harmless", "setting": "eager", "dtype": "bf16", "layout": "dense", "mode": ""}
print(json.dumps(worker.perform(check, lambda document: None)))
"""

FAULTS = """
import contextlib, json, re, sys
from smoke_tests import library_faults, worker

listed, setting, dtype = getattr(library_faults, sys.argv[1]), *sys.argv[2:]
for fault in [None, *listed]:
    if fault is None or dtype in fault.dtypes:
        with library_faults.put(fault) if fault else contextlib.nullcontext():
            check = {"topic": "training", "setting": setting, "dtype": dtype, "layout": "dense", "mode": "full"}
            found = worker.perform(check, lambda document: None)
        own = fault and found["outcome"] == "fail" and bool(re.search(fault.reason, found["reason"]))
        print(json.dumps([fault.name if fault else "", found["outcome"], own, found["reason"]]))
"""
FROM_THE_FIRST_IMPORT = """
import json, sys
from smoke_tests import library_faults

assert "torch" not in sys.modules
fault = next(fault for fault in library_faults.OPTIMIZER if fault.name == "rate-1-percent-high")
with library_faults.put(fault):
    from smoke_tests import worker

    check = {"topic": "training", "setting": "sdpa", "dtype": "fp32", "layout": "dense", "mode": "full"}
    print(json.dumps(worker.perform(check, lambda document: None)["reason"]))
"""


@pytest.fixture(scope="module", autouse=True)
def torch_is_there():
    if subprocess.run(
        [PYTHON, "-c", "import torch, transformers, pytest"], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"{PYTHON} has no torch, transformers and pytest: name one that has in KNOWNGOOD_SMOKE_PYTHON")


def suite(tmp_path, *arguments, predictions=None):
    """Run a part of the suite; returns the exit status and the report."""
    report, predicted = tmp_path / "report.json", tmp_path / "predictions.json"
    predicted.write_text(json.dumps(predictions or {}))
    command = [PYTHON, "-m", "pytest", str(ROOT / "smoke_tests/smoke_tests"), "-q", "-p", "no:cacheprovider"]
    command += ["--report", str(report), "--predictions", str(predicted), *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
    assert report.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(report.read_text())


def test_a_worker_that_crashes_hangs_or_runs_out_of_memory_costs_one_check(tmp_path):
    made = {"fault/*": {"outcome": "fail", "because": "it is made to"}}
    status, report = suite(tmp_path, "--faults", "-k", "fault or eager/fp32/dense/full", predictions=made)
    said = {check["id"]: check["reason"] for check in report["checks"]}
    assert status == 0
    assert report["verdict"]["ok"]
    assert said.pop("eager/fp32/dense/full") == ""
    assert said["fault/segfault"] == "crash: SIGSEGV"
    assert said["fault/hang"].startswith("hang")
    assert said["fault/out-of-memory"] == "out of memory"
    assert all(check["losses"] == [1.0] for check in report["checks"] if check["topic"] == "fault")


def test_a_fault_that_nobody_predicted_is_the_images(tmp_path):
    status, report = suite(tmp_path, "--faults", "-k", "segfault")
    assert status == 1
    assert report["verdict"]["domain"] == "image"


def test_every_mutant_is_noticed_and_a_harmless_one_is_not(tmp_path):
    status, report = suite(tmp_path, "-k", "mutant and eager")
    assert status == 0
    assert {check["outcome"] for check in report["checks"]} == {"pass"}
    harmless = program(UNNOTICED)[-1]
    assert harmless["outcome"] == "fail"
    assert "unnoticed" in harmless["reason"]


def program(text, *arguments):
    """Run a program that has the suite's modules; returns what its lines say."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [PYTHON, "-c", text, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT / "smoke_tests", env=environment
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("listed", "setting", "dtype"),
    [("ATTENTION", "sdpa", "bf16"), ("OPTIMIZER", "eager", "fp32"), ("OPTIMIZER", "sdpa", "fp16")],
)
def test_every_fault_in_a_library_fails_a_check_for_its_own_reason(listed, setting, dtype):
    (_, right, _, reason), *faults = program(FAULTS, listed, setting, dtype)
    assert (right, reason) == ("pass", "")
    assert len(faults) >= 12
    assert [fault for fault in faults if not fault[2]] == []


def test_a_fault_that_is_there_from_the_first_import_is_noticed():
    (reason,) = program(FROM_THE_FIRST_IMPORT)
    assert reason.startswith("wrong-step: step 2: the weight of")


def test_a_wrong_prediction_is_the_suites_fault(tmp_path):
    wrong = {"eager/*": {"outcome": "refused", "because": "a rule that is wrong"}}
    status, report = suite(tmp_path, "-k", "eager/fp32/dense/full", predictions=wrong)
    assert status == 1
    assert report["verdict"]["domain"] == "suite"


def test_a_gpu_that_was_demanded_and_is_not_there_is_the_hosts(tmp_path):
    status, report = suite(tmp_path, "--demand-gpu", "-k", "eager/fp32/dense/full")
    assert status == 1
    assert report["verdict"]["domain"] == "host"
    assert [check["outcome"] for check in report["checks"]] == ["not-run"]
