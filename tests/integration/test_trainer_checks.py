"""The checks of trainers, with a real torch and a real TRL on the CPU: what they must notice.

`KNOWNGOOD_SMOKE_PYTHON` names an interpreter that has trl, torch and pytest; without it, the tests' own. That of the
image of a cell with TRL will do, as `docker run --rm --volume /tmp:/tmp ... python`.
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

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("KNOWNGOOD_SMOKE_PYTHON", sys.executable)
FAULTY = """
import json, sys
from smoke_tests import worker
from smoke_tests.trainers import trl_base, trl_sft
from smoke_tests.trainers import worker as trainers
from smoke_tests.trainers.checks import SFT_FAULTS, Fault
plain = trl_base.train
said = {}
def perform(subject, layout, mode):
    check = {"topic": "trainer", "detail": f"trl-sft/{subject}", "setting": "sdpa", "dtype": "fp32"}
    return worker.perform({**check, "layout": layout, "mode": mode}, lambda document: None)
for fault in SFT_FAULTS:
    if fault.name in ("labels-shifted", "mean-of-means", "seams-ignored", "first-batch-lost", "base-trained"):
        trl_base.train = lambda trainer, _: plain(trainer, fault.name)
        said[fault.name] = perform("qwen2", fault.layout, fault.mode)
trl_base.train = plain
trl_sft.SFT_FAULTS = (Fault("harmless", "padded", "full"),)
said["harmless"] = perform("harmless", "padded", "full")
said["none"] = perform("qwen2", "padded", "full")
with open(sys.argv[1], "w") as file:
    json.dump({name: [result["outcome"], result["reason"]] for name, result in said.items()}, file)
"""


@pytest.fixture(scope="module", autouse=True)
def trl_is_there():
    if subprocess.run([PYTHON, "-c", "import trl, pytest"], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no trl and pytest: name one that has in KNOWNGOOD_SMOKE_PYTHON")


@pytest.fixture
def folder(tmp_path):
    """A folder with the suite of a cell with TRL in it."""
    shutil.copytree(ROOT / "smoke_tests", tmp_path / "smoke_tests")
    shutil.copytree(ROOT / "trainer_tests", tmp_path / "smoke_tests" / "trainers")
    tmp_path.chmod(0o777)
    return tmp_path


def test_a_fault_in_the_trainers_path_is_red_and_a_harmless_one_is_unnoticed(folder):
    script = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv = ['', {str(folder / 'said.json')!r}]\n{FAULTY}"
    )
    subprocess.run([PYTHON, "-c", script], check=True, timeout=900)
    said = json.loads((folder / "said.json").read_text())
    assert said.pop("none") == ["pass", ""]
    harmless = said.pop("harmless")
    assert harmless[0] == "fail"
    assert harmless[1].startswith("unnoticed")
    assert len(said) == 5
    assert {outcome for outcome, _ in said.values()} == {"fail"}, said
    assert "was trained, and only adapters should be" in said["base-trained"][1]
    assert "the first step's loss is off by" in said["mean-of-means"][1]


def test_the_checks_of_trainers_are_in_the_suites_report(folder):
    report = folder / "report.json"
    command = [PYTHON, "-m", "pytest", str(folder / "smoke_tests"), "-q", "-p", "no:cacheprovider"]
    command += ["--report", str(report), "-k", "trl-sft/qwen3/sdpa/fp32/packed/full or toolchain/c"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert report.exists(), done.stdout + done.stderr
    checks = {check["id"]: check for check in json.loads(report.read_text())["checks"]}
    assert checks["toolchain/c"]["outcome"] == "pass"
    trained = checks["trainer/trl-sft/qwen3/sdpa/fp32/packed/full"]
    assert (trained["outcome"], trained["framework"].partition(" ")[0]) == ("pass", "trl")
    assert trained["errors"]["gradient"] < 2e-5
