"""The runner against real processes that hang, crash and lie; torch is not needed for that."""

from __future__ import annotations

import signal
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from smoke_tests.runner import Runner, describe_death, worker_environment

WORKER = """
    import ctypes, json, os, sys, time
    answers = os.fdopen(int(sys.argv[1]), "w")
    def tell(document): answers.write(json.dumps(document) + "\\n"); answers.flush()
    tell({"ready": True})
    for line in sys.stdin:
        check = json.loads(line)
        print("working on", check["do"], flush=True)
        tell({"known": {"losses": [1.0]}})
        if check["do"] == "hang": time.sleep(600)
        if check["do"] == "segfault": ctypes.string_at(0)
        if check["do"] == "exit": sys.exit(3)
        if check["do"] == "kill": os.kill(os.getpid(), 9)
        if check["do"] == "half": answers.write('{"outcome"'); answers.flush(); time.sleep(600)
        if check["do"] == "child": os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
        result = {"outcome": check["do"], "reason": "", "pid": os.getpid()}
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
def test_a_worker_that_dies_is_a_failure_and_the_next_check_runs(runner, do, reason):
    dead = runner.run({"do": do}, 1)
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
    monkeypatch.setattr("smoke_tests.runner.START_TIMEOUT", 0.5)
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
    pid = runner.run({"do": "child"}, 30)["pid"]
    runner.close()
    groups = [line.split() for line in _proc_stats()]
    assert str(pid) not in [fields[2] for fields in groups]


def _proc_stats():
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text().rsplit(")", 1)[1]  # state, parent, process group
        except OSError:
            continue
        if not text.split()[0].startswith("Z"):
            yield text


def test_how_a_death_is_described():
    assert "hang" in describe_death(None, 5)
    assert describe_death(-signal.SIGABRT, 5) == "crash: SIGABRT"


def test_a_worker_is_offline_and_writes_only_into_the_scratch(monkeypatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    environment = worker_environment("/scratch")
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["TRITON_CACHE_DIR"] == "/scratch/triton"
