"""A job's folder for a cluster, and what is taken from it as evidence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kubernetes_validate import validate

from knowngood.cli import main
from knowngood.core.errors import MissingError, UsageError
from knowngood.evidence.run_evidence import RunPlace
from knowngood.smoke import cluster_jobs
from knowngood.smoke.cluster_jobs import ClusterTask, Scheduler
from knowngood.smoke.suite_command import SuiteOptions
from samples import FA2, FA4, ROOT

SUITE = "5" * 64
DIGEST = "sha256:" + "1" * 64
STAND_IN = """\
#!{python}
import json, pathlib, sys
words = sys.argv[1:]
assert words[:3] == ["-m", "pytest", "smoke_tests"] and pathlib.Path("smoke_tests/suite.py").exists(), words
assert json.loads(pathlib.Path(words[words.index("--predictions") + 1]).read_text()) == {{"a": 1}}
if "--crash" in words:
    sys.exit(139)
report = {{"suite_hash": "{suite}", "checks": [], "environment": {{"sm": None}}}}
report["verdict"] = {{"ok": "--red" not in words, "domain": "none", "text": "it's done"}}
pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
sys.exit("--red" in words)
"""


def task(cell=FA4, *arguments, suite=SUITE):
    files = {"smoke_tests/suite.py": b"", "smoke_tests/trainers/more.py": b""}
    return ClusterTask(
        cell=cell,
        image=f"registry.example/team/x@{DIGEST}",
        suite=suite,
        arguments=("-q", *arguments),
        seconds=60,
        predictions={"a": 1},
        files=files,
    )


def write(folder, *tasks, scheduler=Scheduler.SLURM, gpus=False):
    return cluster_jobs.write_job_folder(folder, tasks, scheduler, SuiteOptions(gpus=gpus), ROOT / "templates")


def run_task(folder, number, tmp_path):
    """Run a task's script as a node does, with a stand-in for the image's Python."""
    python = tmp_path / "bin/python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(STAND_IN.format(python=sys.executable, suite=SUITE))
    python.chmod(0o755)
    environment = {"PATH": f"{python.parent}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    script = ["sh", str(folder / "tasks" / str(number) / "run.sh")]
    return subprocess.run(script, env=environment, capture_output=True, text=True, check=False, cwd="/")


def test_each_task_leaves_evidence_or_a_reason(tmp_path):
    folder = tmp_path / "a job's folder"
    write(folder, task(), task(FA2, "--red"), task(FA2.replace("4.57.6", "4.57.5"), "--crash"), task())
    codes = [run_task(folder, number, tmp_path).returncode for number in range(3)]
    assert codes == [0, 0, 1]
    good, red, crash, waiting = cluster_jobs.collect_outcomes(folder)
    assert (good.evidence.cell, good.evidence.ok, good.evidence.image) == (FA4, True, DIGEST)
    assert (good.evidence.where, good.evidence.suite) == (RunPlace.CONTAINER_CPU, SUITE)
    assert good.evidence.command == ("python", "-m", "pytest", "smoke_tests", "-q")
    assert len(good.evidence.node["name"]) == 12, "the node's name is hashed"
    assert not red.evidence.ok
    assert (crash.evidence, crash.problem) == (None, "the suite's process ended with 139")
    assert (waiting.pending, waiting.problem) == (True, "it has left nothing yet")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("knowngood.")] == [], "nothing is left"


def test_a_task_that_has_an_outcome_does_not_run_again(tmp_path):
    write(tmp_path / "job", task())
    place = tmp_path / "job/tasks/0"
    (place / "outcome.json").write_text("{}")
    assert run_task(tmp_path / "job", 0, tmp_path).returncode == 0
    assert (place / "outcome.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (
            '{"when": "x", "node": {}, "report": {"suite_hash": "6"}}',
            "the report is of the suite 6, and the task is of",
        ),
        (f'{{"when": "x", "node": {{}}, "report": {{"suite_hash": "{SUITE}"}}}}', "has no verdict or no checks"),
        ('{"when": "x", "node": {}, "report": ', "outcome.json:1"),
        ('{"when": 1, "node": {}, "report": {}}', "outcome.json:1"),
    ],
)
def test_an_outcome_that_is_damaged_or_of_another_suite_is_a_problem(tmp_path, outcome, problem):
    write(tmp_path / "job", task())
    (tmp_path / "job/tasks/0/outcome.json").write_text(outcome)
    (collected,) = cluster_jobs.collect_outcomes(tmp_path / "job")
    assert collected.evidence is None
    assert problem in collected.problem


def test_a_folder_is_written_once_and_for_one_kind_of_gpu(tmp_path):
    write(tmp_path / "job", task())
    with pytest.raises(UsageError, match="has the tasks of a job already"):
        write(tmp_path / "job", task())
    with pytest.raises(UsageError, match="one kind of GPU, and these cells are for sm_80, sm_90"):
        write(tmp_path / "other", task(), task(FA2.replace("sm90", "sm80")), gpus=True)
    with pytest.raises(MissingError, match="has no tasks of a job"):
        cluster_jobs.collect_outcomes(tmp_path / "nothing")


@pytest.mark.parametrize("gpus", [True, False])
def test_the_scripts_are_sound_shell(tmp_path, gpus):
    script = write(tmp_path / "a job", task(), task(FA2, "it's"), gpus=gpus)
    assert ("--gres=gpu:1" in script.read_text()) is gpus
    scripts = [script, *sorted((tmp_path / "a job/tasks").glob("*/run.sh"))]
    done = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), "--severity=warning", *map(str, scripts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("gpus", [True, False])
def test_the_jobs_of_kubernetes_are_valid_by_its_schema(tmp_path, gpus):
    script = write(tmp_path / "job", task(), task(FA2), scheduler=Scheduler.KUBERNETES, gpus=gpus)
    jobs = list(yaml.safe_load_all(script.read_text()))
    assert [job["metadata"]["annotations"]["io.knowngood.cell"] for job in jobs] == [FA4, FA2]
    for number, job in enumerate(jobs):
        validate(job, "1.30", strict=True)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["sh", f"/knowngood/tasks/{number}/run.sh"]
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) is gpus


def test_a_cell_without_a_published_image_is_no_task(home, lock_of, tmp_path, capsys):
    lock_of(FA4)
    words = ["smoke", "job", "slurm", FA4, "--folder", str(tmp_path / "job")]
    assert main.main(words) == 4
    assert "no repository is named" in capsys.readouterr().err
    assert main.main([*words, "--from", "registry.example/x"]) == 4
    assert "it has no recorded image; a job runs published images" in capsys.readouterr().err
    assert home.root.is_dir()


def test_collecting_says_how_each_task_ended(home, tmp_path, capsys):
    folder = tmp_path / "job"
    write(folder, task(), task(FA2))
    assert run_task(folder, 0, tmp_path).returncode == 0
    assert main.main(["smoke", "collect", str(folder), "--json"]) == 3
    first, second = json.loads(capsys.readouterr().out)["cells"]
    assert (first["state"], first["text"], second["state"]) == ("good", "it's done", "pending")
    (path,) = home.evidence.glob(f"{FA4}/*.json")
    assert first["evidence"] == str(path)
    (folder / "tasks/1/failure").write_text("out of memory\n")
    assert main.main(["smoke", "collect", str(folder)]) == 1
    assert "out of memory" in capsys.readouterr().out
    assert len(list(home.evidence.glob("*/*.json"))) == 1, "collecting twice stores it once"
