"""What runs in the pod, for real: as a process, with a suite that is small."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from knowngood.core.errors import KnowngoodError
from knowngood.executors import kubernetes_pod
from knowngood.executors.fleet_config import KubernetesSection
from knowngood.executors.job import JobNeeds, JobSubject, SuiteJob
from knowngood.executors.kubernetes_executor import read_pod_script
from knowngood.executors.kubernetes_manifest import PAYLOAD, job_manifest, pack_suite
from knowngood.executors.kubernetes_manifest import SUITE as SUITE_FILES
from knowngood.executors.kubernetes_report import NO_REPORT, TIMED_OUT, parse_termination_message, report_from_log

SECTION = KubernetesSection(engine="kubernetes", images="registry.test/a")
SUITE = """
import json, pathlib, signal, time

def pytest_addoption(parser):
    parser.addoption("--report")
    parser.addoption("--predictions")
    parser.addoption("--how", default="")

def pytest_configure():
    signal.signal(signal.SIGTERM, signal.default_int_handler)

def pytest_sessionfinish(session):
    option = session.config.getoption
    if option("--how") != "silent":
        seen = json.loads(pathlib.Path(option("--predictions")).read_text())
        pathlib.Path(option("--report")).write_text(json.dumps({"seen": seen, "how": option("--how")}))
"""
TEST = """
import os, signal, time

def test(pytestconfig):
    how = pytestconfig.getoption("--how")
    if how == "slow":
        print("begun", flush=True)
        time.sleep(60)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    assert how != "red"
"""


def job(*command, seconds=60):
    return SuiteJob(
        cell="sm90-a",
        subject=JobSubject(image="registry.test/a@sha256:" + "a" * 64, content="sha256:" + "a" * 64),
        suite="5" * 64,
        suite_folder=Path(),
        command=("-q", "-s", "-p", "no:cacheprovider", *command),
        predictions={"eager/*": {"outcome": "pass", "because": f"of {command}"}},
        needs=JobNeeds(seconds=seconds),
    )


@pytest.fixture
def pod(tmp_path):
    """The command line of the manifest, with the pod's three places in a folder."""
    files = {"smoke_tests/conftest.py": SUITE.encode(), "smoke_tests/parts/test_it.py": TEST.encode()}

    def start(*jobs, index=0):
        template = job_manifest(jobs, SECTION, read_pod_script(), pack_suite(files))["spec"]["template"]
        annotations = template["metadata"]["annotations"]
        (tmp_path / "jobs.json").write_text(annotations[PAYLOAD])
        (tmp_path / "suite").write_text(annotations[SUITE_FILES])
        python, option, script = template["spec"]["containers"][0]["command"]
        assert (python, option) == ("python", "-c")
        names = ("jobs.json", "suite", "out", "termination")
        places = f"JOBS, SUITE, FOLDER, TERMINATION = {[str(tmp_path / name) for name in names]}"
        script = script.replace("\n\ndef run_pod_job", f"\n{places}\n\n\ndef run_pod_job")
        settings = {"JOB_COMPLETION_INDEX": str(index), "PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.Popen(
            [sys.executable, option, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **settings},
        )

    return start


def message(tmp_path):
    path = tmp_path / "termination"
    return parse_termination_message(path.read_text() if path.exists() else None)


@pytest.mark.parametrize("how", ["green", "red"])
def test_the_report_is_delivered_whether_red_or_green(pod, tmp_path, how):
    jobs = [job("--how=other"), job(f"--how={how}")]
    with pod(*jobs, index=1) as process:
        log, _ = process.communicate(timeout=60)
    assert process.returncode == 0, log
    received = message(tmp_path)
    assert (received.key, received.exit) == (jobs[1].key, int(how == "red"))
    assert received.node["cpus"] == os.cpu_count()
    assert report_from_log(log, jobs[1].key, received.sha256) == {"seen": jobs[1].predictions, "how": how}
    assert "1 passed" in log or "1 failed" in log


@pytest.mark.parametrize(("how", "code"), [("silent", NO_REPORT), ("killed", 137)])
def test_without_a_report_it_fails(pod, tmp_path, how, code):
    one = job(f"--how={how}")
    with pod(one) as process:
        log, _ = process.communicate(timeout=60)
    assert process.returncode == code, log
    assert message(tmp_path) is None
    with pytest.raises(KnowngoodError, match="left no report"):
        report_from_log(log, one.key, None)


def test_the_suite_is_stopped_at_its_time_limit(pod, tmp_path):
    with pod(job("--how=slow", seconds=1)) as process:
        log, _ = process.communicate(timeout=60)
    assert process.returncode == TIMED_OUT, log
    assert message(tmp_path) is None


def test_a_pod_that_is_stopped_delivers_no_report(pod, tmp_path):
    with pod(job("--how=slow")) as process:
        for line in process.stdout:
            if line.startswith("begun"):
                break
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        log = process.communicate(timeout=30)[0]
    assert time.monotonic() - began < 20
    assert process.returncode == kubernetes_pod.STOPPED, log
    assert (tmp_path / "out" / "report.json").exists()  # the suite wrote what it had
    assert message(tmp_path) is None


@pytest.mark.parametrize("text", [None, "", "the log's last lines\n", "[]", json.dumps({"key": "0"})])
def test_messages_of_other_programs_are_ignored(text):
    assert parse_termination_message(text) is None


def test_the_oldest_python_of_a_cell_can_read_the_program():
    ast.parse(read_pod_script(), feature_version=(3, 9))
    assert "from knowngood" not in read_pod_script()
