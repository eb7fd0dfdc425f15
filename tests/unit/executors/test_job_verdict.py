"""What tries say about an image, which nodes are not trusted, and the answer of a command."""

from __future__ import annotations

from job_samples import CELL, job

from knowngood.core.errors import MissingError
from knowngood.executors import job_verdict
from knowngood.executors.job import FailureCause, JobState
from knowngood.executors.job_report import FleetReport
from knowngood.executors.job_verdict import JobTry, JobVerdict, Retry, VerdictKind


def test_tries_are_bounded():
    pulled = JobTry(attempt=1, state=JobState.FAILED, cause=FailureCause.IMAGE_PULL, node="n1")
    red = JobTry(attempt=1, state=JobState.ENDED, domain="image", node="n1", text="loss")
    assert isinstance(job_verdict.judge_tries([pulled]), Retry)
    assert isinstance(job_verdict.judge_tries([pulled, pulled]), JobVerdict)
    assert job_verdict.judge_tries([red]).avoid == {"n1"}
    assert job_verdict.judge_tries([red, red]).kind is VerdictKind.UNCONFIRMED
    assert job_verdict.judge_tries([red, pulled, pulled]).kind is VerdictKind.UNCONFIRMED


def test_the_first_red_is_tried_on_another_node_even_after_a_lost_try():
    lost = JobTry(attempt=1, state=JobState.LOST, node="n1", text="gone")
    red = JobTry(attempt=2, state=JobState.ENDED, domain="image", node="n2", text="loss", avoid=("n3",))
    retry = job_verdict.judge_tries([lost, red])
    assert isinstance(retry, Retry)
    assert job_verdict.judge_tries([lost.model_copy(update={"avoid": ("n3",)})]).avoid == {"n3"}
    assert (retry.avoid, retry.because) == ({"n2", "n3"}, "red on n2: loss")


def test_a_node_that_was_red_and_then_green_is_no_disagreement_with_itself():
    red = JobTry(attempt=1, state=JobState.ENDED, domain="image", node="n1", text="loss")
    good = JobTry(attempt=2, state=JobState.ENDED, domain="none", node="n1", text="5 pass")
    assert job_verdict.judge_tries([red, good]) == JobVerdict(kind=VerdictKind.GOOD, text="5 pass")
    elsewhere = good.model_copy(update={"node": "n2"})
    assert job_verdict.judge_tries([red, elsewhere]).text == "5 pass; good on n2, not on n1 (loss)"


def test_a_node_that_failed_what_only_it_had_passed_is_not_avoided():
    first = job_verdict.NodeResult(node="n1", cell=CELL, content="a", good=True, text="t", when="1")
    book = job_verdict.NodeLedger().add(first).add(first.model_copy(update={"good": False, "when": "2"}))
    assert book.suspects() == {}


def test_the_ledger_keeps_the_newest_results(monkeypatch):
    monkeypatch.setattr(job_verdict, "MAX_NODE_RESULTS", 2)
    book = job_verdict.NodeLedger()
    for number in range(4):
        book = book.add(job_verdict.NodeResult(node="n", cell=CELL, content="a", good=True, text="t", when=str(number)))
    assert [item.when for item in book.results] == ["2", "3"]


def test_a_node_is_trusted_again_when_it_passes():
    def result(node, content, *, good):
        return job_verdict.NodeResult(node=node, cell=CELL, content=content, good=good, text="t", when="")

    book = job_verdict.NodeLedger().add(result("n1", "a", good=False))
    assert book.suspects() == {}  # nobody passes it
    book = book.add(result("n2", "a", good=True))
    assert book.suspects().keys() == {"n1"}
    assert job_verdict.parse_ledger(book.render()) == book
    assert book.add(result("n2", "a", good=True)) == book
    assert book.add(result("n1", "b", good=True)).suspects() == {}
    assert job_verdict.parse_ledger("{") is None


def test_the_exit_code_is_that_of_the_worst_outcome():
    def line(end):
        return job_verdict.JobResult(job=job(), verdict=JobVerdict(kind=end, text="t"))

    def code(*lines, **refused):
        return FleetReport(executor="x", results=lines, refused=refused).exit_code

    assert code(line(VerdictKind.GOOD), line(VerdictKind.PROVEN)) == 0
    assert code(line(VerdictKind.GOOD), line(VerdictKind.WAITING)) == 3
    assert code(line(VerdictKind.WAITING), line(VerdictKind.REFUSED)) == 4
    assert code(line(VerdictKind.REFUSED), line(VerdictKind.RED)) == 1
    assert code(cell=MissingError("no image")) == 4
    report = FleetReport(
        executor="x", results=[line(VerdictKind.RED)], refused={"c": MissingError("no image")}, avoided={"n1": "why"}
    )
    assert report.sentences() == [f"{CELL}: red: t", "c: refused: no image", "avoided: n1: why"]
    assert [one["outcome"] for one in report.document()["cells"]] == ["red", "refused"]
