"""Reproductions in the current environment: what must be installed, what a program gets, what is recorded."""

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest

from knowngood_diagnose.reproductions import reproduction
from knowngood_diagnose.reproductions.local_places import CurrentEnvironment, unmet_requirements
from knowngood_diagnose.reproductions.reproduction import CannotTryError, SideJob

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
        "observe.py": (reproduction.reproductions_folder() / "observe.py").read_text(),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return reproduction.load_reproduction("thing", tmp_path)


def test_a_side_runs_with_this_python_and_the_callers_variables(case, monkeypatch, tmp_path):
    monkeypatch.setenv("OWN", "kept")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = CurrentEnvironment().observe(SideJob(case=case, name="failing", files=case.files), lambda _: None)
    assert (run.exit, run.result["own"], run.result["python"]) == (0, "kept", sys.executable)
    assert json.loads(run.output)["path"] == [".", "./sources", "environment"]
    assert json.loads(run.output)["python"].startswith("environment/")
    # the unpacked release hides the installed one
    assert (run.packages["pytest"], run.packages["packaging"]) == (PYTEST, "1.0")
    assert str(tmp_path) not in json.dumps([run.output, dict(run.packages)])


def test_a_side_with_other_pins_is_not_run(case):
    job = SideJob(case=case, name="another", files=case.files)
    with pytest.raises(CannotTryError, match=rf"packaging is installed; pytest is {PYTEST}, not ==0.1"):
        CurrentEnvironment().observe(job, lambda _: None)
    with pytest.raises(CannotTryError, match="a system without gcc; --in image"):
        CurrentEnvironment().observe(SideJob(case=case, name="bare", files=case.files), lambda _: None)


def test_unmet_requirements_respect_markers():
    assert (
        unmet_requirements([f"pytest=={PYTEST}", "thing-of-nobody==1; python_version < '3'"], ["thing-of-nobody"]) == []
    )
    assert unmet_requirements(["thing-of-nobody==1"], []) == ["thing-of-nobody is not installed, not ==1"]


def test_the_number_of_gpus_is_what_torch_sees(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("class cuda:\n    device_count = staticmethod(lambda: 2)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert CurrentEnvironment().gpus() == 2
    (tmp_path / "torch.py").write_text("raise ImportError\n")
    assert CurrentEnvironment().gpus() == 0
