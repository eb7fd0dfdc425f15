"""The job for Slurm on a real Slurm: a controller, three nodes, GPUs that are files (`slurm_cluster`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import slurm_cluster
from slurm_cluster import until

from conftest import ROOT
from knowngood.smoke import cluster_jobs
from knowngood.smoke.cluster_jobs import ClusterTask, Scheduler
from knowngood.smoke.suite_command import SuiteOptions

pytestmark = pytest.mark.integration
SUITE = "5" * 64
CELL = "sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b33-triton3.6.0-py311"
# Stands where the image's Python would; what it is to do follows from its arguments.
STAND_IN = """\
#!{python}
import json, os, pathlib, sys, time
words = sys.argv[1:]
if "--sleep" in words:
    time.sleep(300)
if "--crash" in words:
    sys.exit(139)
red = "--red" in words
report = {{"suite_hash": "{suite}", "checks": [], "environment": {{"sm": None}}}}
text = "seen on " + os.environ["SLURMD_NODENAME"]
report["verdict"] = {{"ok": not red, "domain": "image" if red else "none", "text": text}}
pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
sys.exit(red)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        python = cluster.folder / "environment/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(STAND_IN.format(python=sys.executable, suite=SUITE))
        python.chmod(0o755)
        yield cluster


def task(transformers, *arguments):
    return ClusterTask(
        cell=CELL.replace("tf5.17.0", f"tf{transformers}"),
        image=f"registry.example/team/x@sha256:{'1' * 64}",
        suite=SUITE,
        arguments=arguments,
        seconds=100,
        predictions={},
        files={"smoke_tests/suite.py": b""},
    )


def submit(cluster, folder):
    """Submit a job, with an environment in the place of its images; return its number."""
    start = f"env PATH={cluster.folder}/environment/bin:/usr/bin:/bin"
    words = ["sbatch", "--parsable", f"--export=ALL,KNOWNGOOD_START={start}", str(folder / "job.sh")]
    return cluster.command(*words).strip()


def write(folder, tasks, templates):
    suite = SuiteOptions(gpus=True, seconds=100, memory="100m")
    cluster_jobs.write_job_folder(folder, tasks, Scheduler.SLURM, suite, templates)


def has_ended(cluster, job):
    states = cluster.command("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T").split()
    return not set(states) - {"COMPLETED", "FAILED", "CANCELLED"}


def test_an_array_runs_on_nodes_with_the_gpu_and_leaves_evidence_or_reasons(cluster, checkout, knowngood):
    folder = cluster.shared / "job"
    tasks = [task("5.17.0"), task("5.16.0", "--red"), task("5.15.0", "--crash"), task("5.14.0")]
    write(folder, tasks, checkout / "templates")
    job = submit(cluster, folder)
    until("the array", lambda: has_ended(cluster, job), seconds=120, logs=cluster.logs)
    done = knowngood("smoke", "collect", str(folder), "--json")
    cells = json.loads(done.stdout)["cells"]
    assert done.returncode == 1, done.stderr
    assert [item["state"] for item in cells] == ["good", "red", "failed", "good"]
    assert {item["text"] for item in cells if item["state"] == "good"} == {"seen on n1"}, "the only node with sm_90"
    assert cells[2]["text"] == "the suite's process ended with 139"
    evidence = json.loads((checkout / "evidence" / cells[0]["id"]).glob("*.json").__next__().read_text())
    assert (evidence["where"], evidence["image"]) == ("container-cpu", f"sha256:{'1' * 64}")
    assert "n1" not in json.dumps(evidence["node"]), "the node's name is hashed"


def test_a_task_that_is_cancelled_is_pending_and_runs_when_it_is_submitted_again(cluster, checkout, knowngood):
    folder = cluster.shared / "cancelled"
    write(folder, [task("5.13.0", "--sleep")], checkout / "templates")
    job = submit(cluster, folder)
    until("its start", lambda: "RUNNING" in cluster.command("squeue", "--noheader", "--jobs", job, "--format=%T"))
    cluster.command("scancel", job)
    until("its end", lambda: has_ended(cluster, job), seconds=60, logs=cluster.logs)
    assert knowngood("smoke", "collect", str(folder)).returncode == 3
    script = folder / "tasks/0/run.sh"
    script.write_text(script.read_text().replace(" --sleep", ""))
    again = submit(cluster, folder)
    until("the second try", lambda: has_ended(cluster, again), seconds=60, logs=cluster.logs)
    assert knowngood("smoke", "collect", str(folder)).returncode == 0


@pytest.fixture
def checkout(tmp_path):
    """A project in which evidence is stored."""
    for name in ("templates", "smoke_tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    return tmp_path


@pytest.fixture
def knowngood(checkout):
    def run(*words):
        command = [sys.executable, "-m", "knowngood", *words]
        return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)

    return run
