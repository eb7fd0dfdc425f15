"""The loop over jobs and its state; the engine is a fake behind the Protocol."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from job_samples import CELL, SUITE, job

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.evidence import run_evidence
from knowngood.executors.job import FailureCause, JobOutcome, JobState, JobStatus
from knowngood.executors.job_run import SILENCE_SECONDS, FleetState, JobRun
from knowngood.executors.job_verdict import VerdictKind


def report(domain="none", suite=SUITE):
    verdict = {"ok": domain == "none", "domain": domain, "text": f"{domain} text"}
    return {"verdict": verdict, "suite_hash": suite, "checks": [], "environment": {"sm": "sm_90"}}


class Engine:
    """Runs each job on the first node that it need not avoid, as `nodes` say; a poll later it has ended."""

    name = "fake"
    longest_pause = 5

    def __init__(self, **nodes):
        self.nodes = nodes
        self.submitted, self.cancelled, self.polls = [], [], 0
        self.jobs, self.status, self.reports = {}, {}, {}

    def submit(self, jobs):
        new = [one for one in jobs if one.key not in self.jobs]
        self.submitted.append([one.key for one in new])
        self.jobs |= {one.key: one for one in new}
        for one in new:
            free = [node for node in self.nodes if node not in one.avoid]
            if not free:
                text = "every node is to be avoided"
                self.status[one.key] = JobStatus(state=JobState.REFUSED, cause=FailureCause.NO_NODE, text=text)
            else:
                self.status[one.key] = JobStatus(state=JobState.RUNNING, node=free[0])
        return {one.key: self.status[one.key] for one in jobs}

    def rehearse(self, jobs):
        return [one.key for one in jobs]

    def poll(self, keys):
        self.polls += 1
        for key in keys:
            if key in self.status and self.status[key].state is JobState.RUNNING:
                self.end(key, self.nodes[self.status[key].node])
        return {key: self.status.get(key, JobStatus(state=JobState.LOST)) for key in keys}

    def end(self, key, what):
        node = self.status[key].node
        if isinstance(what, JobStatus):
            self.status[key] = replace(what, node=node)
        elif what:
            self.reports[key] = what if isinstance(what, KnowngoodError) else report(what)
            self.status[key] = JobStatus(state=JobState.ENDED, node=node)

    def cancel(self, keys):
        self.cancelled += keys

    def result(self, key):
        stored = self.reports[key]
        if isinstance(stored, KnowngoodError):
            raise stored
        return JobOutcome(report=stored, node={"name": "x"}, when="2026-11-21T10:00:00+00:00", gpu=True)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def carry(tmp_path):
    def run(engine, jobs, *, wait=1000.0, messages=None):
        clock = Clock()
        made = JobRun(
            executor=engine,
            state=FleetState(tmp_path / "state"),
            store=lambda run: run_evidence.store_evidence(run, tmp_path / "evidence").name,
            notify=(messages if messages is not None else []).append,
            wait=wait,
            clock=clock,
            sleep=clock.sleep,
        )
        return made.run_jobs(jobs)

    run.files = lambda: sorted((tmp_path / "evidence").glob("*/*.json"))
    run.state = tmp_path / "state"
    return run


def outcome(line):
    return line.verdict.kind


def test_a_green_job_is_evidence_of_its_image_on_a_gpu(carry):
    engine = Engine(n1="none")
    (line,) = carry(engine, [job()])
    assert outcome(line) is VerdictKind.GOOD
    (path,) = carry.files()
    run = run_evidence.load_evidence(path)
    assert (run.where, run.image) == (run_evidence.RunPlace.CONTAINER_GPU, "sha256:1")


def test_red_on_one_node_and_green_on_another_is_green_and_the_node_is_reported(carry):
    engine = Engine(n1="image", n2="none")
    (line,) = carry(engine, [job()])
    assert outcome(line) is VerdictKind.GOOD
    assert "good on n2, not on n1 (image text)" in line.verdict.text
    assert [one.node for one in line.tries] == ["n1", "n2"]
    assert len(carry.files()) == 2
    state = FleetState(carry.state)
    assert state.ledger.suspects() == {"n1": f"{CELL} failed on it (image text) and passed on n2"}
    assert json.loads(state.ledger_path.read_text())["avoided"].keys() == {"n1"}
    # The next job does not go there.
    (line,) = carry(engine, [job("sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311")])
    assert [one.node for one in line.tries] == ["n2"]


def test_red_on_two_nodes_is_red(carry):
    (line,) = carry(Engine(n1="image", n2="image"), [job()])
    assert outcome(line) is VerdictKind.RED
    assert line.verdict.text == "image text (on n1 and n2)"


def test_red_where_there_is_no_other_node_is_not_confirmed(carry):
    engine = Engine(n1="image")
    (line,) = carry(engine, [job()])
    assert outcome(line) is VerdictKind.UNCONFIRMED
    assert "not confirmed on another node: every node is to be avoided" in line.verdict.text
    assert outcome(line).exit_code == 1
    assert engine.cancelled  # an engine may hold what it refuses


@pytest.mark.parametrize(
    ("what", "end", "code", "tries"),
    [
        ("suite", VerdictKind.SUITE, 1, 1),
        ("host", VerdictKind.HOST, 4, 2),
        (JobStatus(state=JobState.FAILED, cause=FailureCause.TIME_LIMIT, text="x"), VerdictKind.FAILED, 1, 1),
        (JobStatus(state=JobState.FAILED, cause=FailureCause.MEMORY, text="x"), VerdictKind.FAILED, 1, 1),
        (JobStatus(state=JobState.FAILED, cause=FailureCause.NODE, text="x"), VerdictKind.FAILED, 1, 2),
        (JobStatus(state=JobState.FAILED, cause=FailureCause.IMAGE_PULL, text="x"), VerdictKind.FAILED, 1, 2),
        (JobStatus(state=JobState.FAILED, cause=FailureCause.CRASH, text="x"), VerdictKind.RED, 1, 2),
        (JobStatus(state=JobState.REFUSED, cause=FailureCause.QUOTA, text="x"), VerdictKind.REFUSED, 4, 1),
        (JobStatus(state=JobState.CANCELLED, text="x"), VerdictKind.CANCELLED, 1, 1),
        (JobStatus(state=JobState.LOST, text="x"), VerdictKind.LOST, 3, 2),
        (KnowngoodError("half written"), VerdictKind.FAILED, 1, 2),
    ],
)
def test_each_fault_has_its_verdict_and_the_other_jobs_complete(carry, what, end, code, tries):
    class One(Engine):
        def end(self, key, verdict):
            super().end(key, what if self.jobs[key].cell == CELL else verdict)

    lines = carry(One(n1="none", n2="none"), [job(), job("other")])
    assert [outcome(line) for line in lines] == [end, VerdictKind.GOOD]
    assert end.exit_code == code
    assert len(lines[0].tries) == tries


def test_a_report_of_another_suite_is_not_evidence(carry):
    class Old(Engine):
        def end(self, key, verdict):
            super().end(key, verdict)
            self.reports[key] = report(suite="cd" * 32)

    (line,) = carry(Old(n1="none"), [job()])
    assert outcome(line) is VerdictKind.FAILED
    assert "the report is of the suite cdcdcdcdcdcd" in line.verdict.text
    assert carry.files() == []


def test_a_killed_program_continues_with_its_jobs_and_stores_a_result_once(carry):
    engine = Engine(n1=None, n2="none")  # on n1 it runs on
    (line,) = carry(engine, [job()], wait=30)
    assert outcome(line) is VerdictKind.WAITING
    assert outcome(line).exit_code == 3
    assert engine.polls < 15  # it asks less and less often
    engine.nodes["n1"] = "none"
    (line,) = carry(engine, [job()])
    assert outcome(line) is VerdictKind.GOOD
    assert sum(map(len, engine.submitted)) == 1
    assert len(carry.files()) == 1
    (carry.state / "state.json").write_text("{")  # damaged: the same result is delivered once more
    (line,) = carry(engine, [job()])
    assert outcome(line) is VerdictKind.GOOD
    assert len(carry.files()) == 1
    # A reported verdict is not reported again: the next command starts a new run.
    carry(engine, [job()])
    assert sum(map(len, engine.submitted)) == 2


def test_a_program_killed_between_two_nodes_continues_with_the_second(carry):
    engine = Engine(n1="image", n2=None)
    (line,) = carry(engine, [job()], wait=20)
    assert outcome(line) is VerdictKind.WAITING
    engine.nodes["n2"] = "none"
    (line,) = carry(engine, [job()])
    assert outcome(line) is VerdictKind.GOOD
    assert [one.node for one in line.tries] == ["n1", "n2"]


def test_an_engine_that_does_not_answer_for_a_while_is_asked_again(carry):
    class Flaky(Engine):
        def poll(self, keys):
            if self.polls < 3:
                self.polls += 1
                raise MissingError("no answer")
            return super().poll(keys)

    messages = []
    (line,) = carry(Flaky(n1="none"), [job()], messages=messages)
    assert outcome(line) is VerdictKind.GOOD
    assert messages.count("polling failed: no answer; retrying") == 3


def test_an_engine_that_never_answers_again_is_an_error_and_the_jobs_stay(carry):
    class Gone(Engine):
        def poll(self, _keys):
            raise MissingError("no answer")

    with pytest.raises(MissingError, match="the jobs stay at the engine, and the same command continues"):
        carry(Gone(n1="none"), [job()], wait=10 * SILENCE_SECONDS)
    (line,) = carry(Engine(n1="none"), [job()])
    assert outcome(line) is VerdictKind.GOOD


def test_unfinished_jobs_are_cancelled_once_and_then_run_again(carry):
    engine = Engine(n1=None)
    carry(engine, [job(), job("other")], wait=5)
    assert FleetState(carry.state).cancel_jobs([job(), job("unknown")], engine) == [CELL]
    assert FleetState(carry.state).cancel_jobs([job()], engine) == []
    assert engine.cancelled == [job().key]
    carry(engine, [job()], wait=5)
    assert engine.submitted[-1] == [job(attempt=2).key]
