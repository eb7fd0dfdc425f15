"""Training over two processes with gloo, in the default cell's image: DDP is right, and a fault is noticed.

`KNOWNGOOD_SMOKE_PYTHON` names an interpreter with torch and transformers that runs it instead of the image.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[4]
PYTHON = os.environ.get("KNOWNGOOD_SMOKE_PYTHON")
CHECKS = ("parallel/ddp/sdpa/fp32/accumulated", "parallel/ddp/sdpa/fp32/step/averaged-twice")


def test_two_processes_train_as_one_and_a_planted_fault_is_noticed(tmp_path):
    for folder in ("smoke_tests", "parallel_tests"):
        shutil.copytree(
            ROOT / "smoke_tests" / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    inside = ["python", "-m", "parallel_tests", "--processes", "2", "--backend", "gloo", "--out", "report.json"]
    inside += [word for check in CHECKS for word in ("--only", check)]
    argv = [PYTHON, *inside[1:]] if PYTHON else [sys.executable, "-m", "knowngood", "run", "default", "--", *inside]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    step, fault = report["checks"]
    assert (step["id"], step["outcome"], fault["outcome"]) == (CHECKS[0], "pass", "pass")
    assert 0 < step["errors"]["gradient"] < 2e-5
    assert [rank["outcome"] for rank in step["ranks"]] == ["pass", "pass"]
    assert "by 5.0e-01" in fault["noticed"]
    assert fault["errors"]["loss"] < 1e-6  # the loss alone would not have shown it
