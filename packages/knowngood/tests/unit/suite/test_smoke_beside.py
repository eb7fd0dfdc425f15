"""The suite's further workers, with real processes; torch is not needed for that."""

from __future__ import annotations

import sys
import textwrap
import threading

import pytest

from smoke_tests import catalogue, suite
from smoke_tests.beside import Beside, count_workers
from smoke_tests.catalogue import MEASURING, Check
from smoke_tests.runner import Runner

WORKER = """
    import json, os, sys, time
    answers = os.fdopen(int(sys.argv[1]), "w")
    def tell(document): answers.write(json.dumps(document) + "\\n"); answers.flush()
    tell({"ready": True})
    for line in sys.stdin:
        check = json.loads(line)
        if check.get("detail") == "hang": time.sleep(600)
        tell({"outcome": "pass", "reason": "", "pid": os.getpid(), "environment": {"gpu": "a GPU"}})
"""
FLEX, FA4, EAGER = (Check("training", name, "bf16", "dense", "full") for name in ("flex", "fa4", "eager"))
PACKED = Check("training", "flex", "bf16", "packed", "full")
SPEED = Check("speed", "flex", "bf16")
HANG = Check("training", "flex", "bf16", "packed", "full", detail="hang", timeout=600.0)


@pytest.fixture
def new_runner(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    return lambda: Runner([sys.executable, str(script)])


@pytest.fixture
def new_suite(monkeypatch, new_runner):
    """Makes a whole run on a machine where some further workers help."""
    made = []

    def new(*, further):
        monkeypatch.setattr("smoke_tests.beside.count_workers", lambda *_, **__: further)
        made.append(suite.Suite(suite.Options()))
        return made[-1]

    monkeypatch.setattr(suite, "Runner", new_runner)
    monkeypatch.setattr("smoke_tests.environment.distributions", dict)
    monkeypatch.setattr("smoke_tests.environment.kernel_files", dict)
    yield new
    for one in made:
        one.close(finished=False)


@pytest.fixture
def run(new_suite):
    return new_suite(further=2)


def test_checks_that_compile_run_in_a_worker_of_their_own_in_the_order_of_the_report(run):
    checks = [EAGER, FLEX, FA4, PACKED, SPEED]
    run.begin(checks)
    eager, flex, fa4, packed, speed = (run.run(check)["pid"] for check in checks)
    assert [entry["id"] for entry in run.entries] == [check.id for check in checks]
    assert {entry["outcome"] for entry in run.entries} == {"pass"}
    assert len({eager, flex, fa4}) == 3
    assert flex == packed == speed  # its worker has compiled for them already


def test_a_check_that_was_not_begun_runs_when_it_is_asked_for(run):
    run.begin([])
    assert run.run(FLEX)["outcome"] == "pass"


def test_what_measures_waits_for_the_other_worker(run):
    let, seen = threading.Event(), []

    def perform(check, _):
        let.wait(30)
        seen.append(check.id)
        return {"outcome": "pass", "reason": ""}

    run.beside.begin([FLEX], perform)
    threading.Timer(0.2, let.set).start()
    run.run(SPEED)
    assert seen == [FLEX.id]


def test_without_room_there_is_one_worker(new_suite):
    run = new_suite(further=0)
    run.begin([EAGER, FLEX])
    assert run.run(EAGER)["pid"] == run.run(FLEX)["pid"]


def test_a_run_that_is_ended_early_leaves_no_worker(new_runner):
    made = Beside([new_runner(), new_runner()])
    begun, ended = threading.Event(), []

    def perform(check, runner):
        begun.set()
        ended.append(runner.run(check.__dict__, check.timeout))
        return ended[-1]

    made.begin([HANG, FLEX], perform)
    assert begun.wait(30)
    made.close()
    assert [result["outcome"] for result in ended] == ["fail"]
    assert {runner.process for runner in made.runners} == {None}


def test_an_error_of_the_suite_is_raised_where_the_result_is_asked_for(new_runner):
    def perform(*_):
        raise OSError("no space left on device")

    made = Beside([new_runner()])
    made.begin([FLEX, PACKED], perform)
    for check in (FLEX, PACKED):
        with pytest.raises(OSError, match="no space left"):
            made.result(check)
    made.close()


@pytest.mark.parametrize(
    ("gpu", "shared", "cores", "further"),
    [("H100", True, 16, 2), ("L4", True, 4, 1), (None, True, 16, 0), ("H100", False, 16, 0), ("H100", True, 2, 0)],
)
def test_further_workers_need_a_gpu_that_is_not_kept_for_one_process_and_cores(
    monkeypatch, gpu, shared, cores, further
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert count_workers({"gpu": gpu}, shared_gpu=shared) == further


def test_what_compiles_is_flexattention_flashattention_4_and_inductor():
    checks = [check for topic in catalogue.TOPICS.values() for check in topic() if check.compiles]
    assert {check.setting or check.detail for check in checks} == {"flex", "fa4", "inductor"}
    assert {"training", "mutant", "toolchain"} == {check.topic for check in checks} - set(MEASURING)
    assert not Check("trainer", "flex", "bf16", "packed", "full", detail="axolotl-sft/qwen3").compiles
