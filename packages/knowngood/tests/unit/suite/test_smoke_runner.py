"""The runner against real processes that hang, crash and lie; torch is not needed for that."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from smoke_tests.runner import Runner, describe_death, worker_environment

WORKER = """
    import ctypes, json, os, sys, time
    answers = os.fdopen(int(sys.argv[1]), "w")
    def tell(document): answers.write(json.dumps(document) + "\\n"); answers.flush()
    def hang(): open(__file__ + ".hangs", "w").close(); time.sleep(600)
    tell({"ready": True})
    for line in sys.stdin:
        check = json.loads(line)
        print("working on", check["do"], flush=True)
        tell({"known": {"losses": [1.0]}})
        if check["do"] == "hang": hang()
        if check["do"] == "segfault": ctypes.string_at(0)
        if check["do"] == "exit": sys.exit(3)
        if check["do"] == "kill": os.kill(os.getpid(), 9)
        if check["do"] == "half": answers.write('{"outcome"'); answers.flush(); hang()
        child = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600") if check["do"] == "child" else None
        result = {"outcome": check["do"], "reason": "", "pid": os.getpid(), "child": child}
        tell({**result, "exception": "E"} if check["do"] == "fail" and check.get("error") else result)
"""


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.setattr("smoke_tests.runner.START_TIMEOUT", 30.0)
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    made = Runner([sys.executable, str(script)])
    yield made
    made.close()


@pytest.fixture
def no_clock(runner, monkeypatch):
    """Lets a timeout pass only when the worker hangs and all its output is read, however busy the machine is.

    Returns the list of the timeouts, in seconds, that the runner passed to `select`.
    """
    hangs = Path(runner.command[1] + ".hangs")
    wait, timeouts, hung = subprocess.Popen.wait, [], []

    def select_now(reads, writes, errors, seconds):
        timeouts.append(seconds)
        while not hangs.exists():
            ready = select.select(reads, writes, errors, 0.01)
            if ready[0]:
                return ready
        ready = select.select(reads, writes, errors, 0)
        if not ready[0]:
            hangs.unlink()
            hung.append(runner.process)
        return ready

    def wait_without_patience(process, timeout=None):
        return wait(process, 0 if timeout and process in hung else None)

    monkeypatch.setattr("smoke_tests.runner.select", SimpleNamespace(select=select_now))
    monkeypatch.setattr("smoke_tests.runner.subprocess.Popen.wait", wait_without_patience)
    return timeouts


def test_one_worker_serves_many_checks(runner):
    first, second = runner.run({"do": "pass"}, 30), runner.run({"do": "refused"}, 30)
    assert (first["outcome"], second["outcome"]) == ("pass", "refused")
    assert first["pid"] == second["pid"]


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("hang", "hang: no answer within 1 s"),
        ("half", "hang: no answer within 1 s"),
        ("segfault", "crash: SIGSEGV"),
        ("kill", "crash: killed by SIGKILL"),
        ("exit", "crash: the worker exited with status 3"),
    ],
)
def test_a_worker_that_dies_is_a_failure_and_the_next_check_runs(runner, no_clock, do, reason):
    dead = runner.run({"do": do}, 1)
    assert no_clock[-1] <= 1
    assert dead["outcome"] == "fail"
    assert dead["reason"].startswith(reason)
    assert f"working on {do}" in dead["log_tail"]
    assert dead["losses"] == [1.0]  # what was known before it died
    assert runner.run({"do": "pass"}, 30)["outcome"] == "pass"


@pytest.mark.parametrize("error", [True, False])
def test_only_an_error_gets_the_next_check_a_fresh_worker(runner, error):
    failed, following = runner.run({"do": "fail", "error": error}, 30), runner.run({"do": "pass"}, 30)
    assert failed["outcome"] == "fail"
    assert (failed["pid"] != following["pid"]) is error


def test_a_worker_that_never_gets_ready_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr("smoke_tests.runner.START_TIMEOUT", 0.1)
    wait = subprocess.Popen.wait
    monkeypatch.setattr(
        "smoke_tests.runner.subprocess.Popen.wait",
        lambda process, timeout=None: wait(process, 0 if timeout else None),  # the worker never ends by itself
    )
    script = tmp_path / "worker.py"
    script.write_text("import time; time.sleep(600)")
    never = Runner([sys.executable, str(script)])
    assert never.run({"do": "pass"}, 30)["reason"].startswith("hang")
    never.close()


def test_a_worker_that_died_between_two_checks_is_replaced(runner):
    runner.run({"do": "pass"}, 30)
    runner.process.kill()
    runner.process.wait()
    assert runner.run({"do": "pass"}, 30)["outcome"] == "pass"


def test_nothing_that_a_worker_started_outlives_it(runner):
    child = runner.run({"do": "child"}, 30)["child"]
    ended = os.pidfd_open(child)  # readable once the process has ended
    runner.close()
    try:
        assert select.select([ended], [], [], 60)[0]
    finally:
        os.close(ended)


def test_how_a_death_is_described():
    assert "hang" in describe_death(None, 5)
    assert describe_death(-signal.SIGABRT, 5) == "crash: SIGABRT"


def test_a_worker_is_offline_and_writes_only_into_the_scratch(monkeypatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    environment = worker_environment("/scratch")
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["TRITON_CACHE_DIR"] == "/scratch/triton"
