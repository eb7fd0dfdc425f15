"""The checks of training over several processes: what needs no torch of them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_tests import catalogue, joining, launcher, whole_run
from smoke_tests.catalogue import Check

ROOT = Path(__file__).resolve().parents[5]

STEP = Check("parallel", "sdpa", "fp32", "step", detail="ddp")
FAULT = Check("parallel", "sdpa", "fp32", "step", "averaged-twice", detail="ddp")
PASSED = {"outcome": "pass", "reason": "", "at": 1.0, "seconds": 2.0, "errors": {"loss": 1e-9, "gradient": 1e-6}}


def failed(reason, **named):
    return {**PASSED, "outcome": "fail", "reason": reason, **named}


def join(check, *results):
    return joining.join_results(check.__dict__, dict(enumerate(results)), 9.0)


@pytest.fixture
def ranks(monkeypatch):
    """Runs checks of these layouts with two ranks that have no torch."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))

    def run(*layouts):
        checks = [Check("parallel", layout=layout, detail="launcher", timeout=5.0) for layout in layouts]
        done = launcher.run_checks(checks, 2, "gloo", "silent_rank")
        return {check.layout: results for check, results in done}

    return run


def test_ids_are_unique_and_every_fault_has_a_function():
    ids = [check.id for check in catalogue.checks()]
    assert len(ids) == len(set(ids))
    tree = ast.parse((ROOT / "smoke_tests/parallel_tests" / "faults.py").read_text())
    tables = {
        node.targets[0].id: {tuple(part.value for part in key.elts) for key in node.value.keys}
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("FAULTS", "DAMAGES")
    }
    listed = {
        (way, fault, "DAMAGES" if noticed.compared == "checkpoint" else "FAULTS")
        for way, faults in catalogue.FAULTS.items()
        for fault, noticed in faults.items()
        if way != "trainer"  # its fault is an option of transformers
    }
    assert listed == {(*key, table) for table, keys in tables.items() for key in keys}


def test_the_ranks_of_a_group_share_their_processes(ranks):
    results = ranks("fine", "also-fine")
    assert [result["outcome"] for result in results["fine"].values()] == ["pass", "pass"]
    assert results["fine"][1]["process"] == results["also-fine"][1]["process"]
    assert results["fine"][0]["process"] != results["fine"][1]["process"]


def test_a_crash_of_one_rank_is_named_and_the_next_check_has_new_processes(ranks):
    results = ranks("crash", "fine")
    assert results["crash"][1]["reason"] == "crash: SIGSEGV"
    assert results["crash"][1]["losses"] == [1.0]  # what was known before
    assert results["fine"][1]["outcome"] == "pass"


def test_a_rank_that_hangs_is_named_with_the_place(ranks):
    results = ranks("hang")
    assert results["hang"][0]["outcome"] == "pass"
    assert results["hang"][1]["reason"].startswith("no answer; it is in sleep_forever (silent_rank.py:")


def test_no_process_outlives_the_run(ranks):
    results = ranks("hang", "fine")
    for result in results["fine"].values():
        with pytest.raises(ProcessLookupError):
            os.kill(result["process"], 0)


def test_the_worst_rank_decides_and_every_rank_is_kept():
    result = join(STEP, PASSED, failed("off by 1", errors={"gradient": 1.0}))
    assert (result["outcome"], result["reason"]) == ("fail", "rank 1: off by 1")
    assert result["errors"] == {"gradient": 1.0}
    assert [rank["outcome"] for rank in result["ranks"]] == ["pass", "fail"]


def test_the_numbers_of_the_worst_gradient_are_reported_and_nan_is_the_worst():
    far = {**PASSED, "errors": {"gradient": 1e-5}}
    assert join(STEP, PASSED, far)["errors"] == {"gradient": 1e-5}
    assert str(join(STEP, far, {**PASSED, "errors": {"gradient": float("nan")}})["errors"]["gradient"]) == "nan"


def test_a_loss_that_is_not_a_number_is_the_furthest_off():
    assert joining.furthest([1e-9, 0.5, 1e-7]) == 0.5
    assert str(joining.furthest([1e-9, float("nan"), 1e-7])) == "nan"


def test_a_reason_that_all_ranks_give_stands_once():
    assert join(STEP, failed("off by 1"), failed("off by 1"))["reason"] == "off by 1"


def test_the_first_error_comes_first_for_the_others_follow_from_it():
    first = failed("an error", exception="RuntimeError", message="the cause", at=1.0)
    result = join(STEP, failed("an error", exception="RuntimeError", message="connection reset", at=2.0), first)
    assert result["message"] == "the cause"
    assert result["reason"].startswith("rank 1: an error: RuntimeError: the cause; rank 0:")


def test_a_fault_is_noticed_when_one_rank_notices_it():
    result = join(FAULT, failed("the fault went unnoticed"), {**PASSED, "noticed": "off by half"})
    assert (result["outcome"], result["noticed"]) == ("pass", "off by half")
    assert join(FAULT, failed("unnoticed"), failed("unnoticed"))["outcome"] == "fail"


def test_a_fault_with_which_a_rank_is_lost_is_not_noticed():
    assert join(FAULT, failed("crash: SIGSEGV", silent=True), PASSED)["outcome"] == "fail"


def test_a_damaged_checkpoint_that_one_rank_refused_is_noticed_though_others_wait():
    lost = failed("no answer; it is in all_reduce", silent=True)
    assert join(FAULT, lost, {**PASSED, "noticed": "no such file", "left": True})["outcome"] == "pass"


def test_the_launchers_own_checks_want_the_last_rank_named():
    check = Check("parallel", layout="rank-crashes", detail="launcher")
    lost = failed("connection reset", exception="RuntimeError")
    assert join(check, lost, failed("crash: SIGSEGV", silent=True))["outcome"] == "pass"
    assert join(check, lost, failed("crash: SIGBUS", silent=True))["outcome"] == "fail"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "nothing"], "no check's id matches nothing"),
        (["--processes", "1"], "--processes must be 2 or more"),
        (["--processes", "3"], "--processes must be even"),
    ],
)
def test_wrong_usage_is_exit_2_and_says_why(words, message):
    argv = [sys.executable, "-m", "parallel_tests", *words]
    done = subprocess.run(argv, cwd=ROOT / "smoke_tests", capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_where_torch_cannot_be_imported_every_check_fails_with_the_reason(monkeypatch, tmp_path):
    broken = {"outcome": "fail", "reason": "an error", "exception": "ImportError", "message": "no torch"}
    monkeypatch.setattr(whole_run, "describe_environment", lambda: ({}, broken))
    made = whole_run.run_all([STEP, FAULT], 2, "gloo", predictions=None, file=tmp_path / "report.json", quick=False)
    assert not made["verdict"]["ok"]
    assert [check["reason"] for check in made["checks"]] == ["torch or transformers cannot be imported: an error"] * 2
    assert json.loads((tmp_path / "report.json").read_text()) == made


def test_nccl_without_enough_gpus_is_the_hosts_fault_and_runs_nothing(monkeypatch):
    monkeypatch.setattr(whole_run, "describe_environment", lambda: ({"gpu_count": 1, "torch": "2.11.0"}, None))
    made = whole_run.run_all([STEP], None, "nccl", predictions=None, file=None, quick=False)
    assert made["verdict"]["domain"] == "host"
    assert made["checks"][0]["reason"] == "host: NCCL wants a GPU for each of 2 processes, and torch sees 1"


def test_without_a_backend_two_gpus_take_nccl_and_none_take_gloo(monkeypatch):
    monkeypatch.setattr(
        launcher, "run_checks", lambda checks, *_: [(check, {0: PASSED, 1: PASSED}) for check in checks]
    )
    for gpus, wanted in ((0, ("gloo", 2)), (1, ("gloo", 2)), (5, ("nccl", 4))):
        monkeypatch.setattr(whole_run, "describe_environment", lambda gpus=gpus: ({"gpu_count": gpus}, None))
        made = whole_run.run_all([STEP], None, "auto", predictions=None, file=None, quick=False)
        assert (made["backend"], made["processes"]) == wanted
