"""Reproductions in the environment at hand: what it must have, what a program sees there, what is written down."""

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest

from knowngood.reproducing import reproductions
from knowngood.reproducing.here import Here, unmet
from knowngood.reproducing.reproduce import CannotTryError, Job

PYTEST = importlib.metadata.version("pytest")
DEFINITION = f"""
python: "3.11"
sides:
  failing: {{requirements: pytest=={PYTEST}, sources: {{packaging==1.0: "packaging/*.py"}}}}
  another: {{requirements: pytest==0.1, excludes: [packaging]}}
  bare: {{base-without: [gcc]}}
"""
PROGRAM = """
import json, os, sys
print(json.dumps({"own": os.environ["OWN"], "python": sys.executable, "path": os.environ["PYTHONPATH"].split(":")}))
"""


@pytest.fixture
def case(tmp_path):
    for name, text in {
        "thing/reproduction.yaml": DEFINITION,
        "thing/program.py": PROGRAM,
        "observe.py": (reproductions.folder() / "observe.py").read_text(),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return reproductions.load("thing", tmp_path)


def test_a_side_runs_with_this_python_and_what_the_caller_has_set(case, monkeypatch, tmp_path):
    monkeypatch.setenv("OWN", "kept")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seen = Here().observe(Job(case=case, side="failing", files=case.files), lambda _: None)
    assert (seen.exit, seen.said["own"], seen.said["python"]) == (0, "kept", sys.executable)
    assert json.loads(seen.output)["path"] == [".", "./sources", "environment"]
    assert json.loads(seen.output)["python"].startswith("environment/")
    # the unpacked release hides the installed one
    assert (seen.packages["pytest"], seen.packages["packaging"]) == (PYTEST, "1.0")
    assert str(tmp_path) not in json.dumps([seen.output, dict(seen.packages)])


def test_another_environment_is_not_tried(case):
    job = Job(case=case, side="another", files=case.files)
    with pytest.raises(CannotTryError, match=rf"packaging is installed; pytest is {PYTEST}, not ==0.1"):
        Here().observe(job, lambda _: None)
    with pytest.raises(CannotTryError, match="a system without gcc; --in image"):
        Here().observe(Job(case=case, side="bare", files=case.files), lambda _: None)


def test_what_is_not_here():
    assert unmet([f"pytest=={PYTEST}", "thing-of-nobody==1; python_version < '3'"], ["thing-of-nobody"]) == []
    assert unmet(["thing-of-nobody==1"], []) == ["thing-of-nobody is not installed, not ==1"]


def test_gpus_are_those_that_torch_sees(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("class cuda:\n    device_count = staticmethod(lambda: 2)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert Here().gpus() == 2
    (tmp_path / "torch.py").write_text("raise ImportError\n")
    assert Here().gpus() == 0
