"""The loop over jobs, its verdicts, its ledger of nodes, and fleet.yaml; the engine is a fake behind the Protocol."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from knowngood import evidence
from knowngood.errors import InputError, KnowngoodError, MissingError, UsageError
from knowngood.fleet import config, course, ledger, local_room
from knowngood.fleet.answer import Told
from knowngood.fleet.course import Again, End, Try, Verdict
from knowngood.fleet.executor import Outcome
from knowngood.fleet.job import Cause, Job, Needs, State, Status, Subject
from knowngood.fleet.run import PATIENCE, Run
from knowngood.fleet.state import State as Kept

SUITE = "ab" * 32
CELL = "sm90-cu130-torch2.11.0-tf5.17.0-fa0-triton3.6.0-py311"


def job(cell=CELL, **changes):
    made = Job(
        cell=cell,
        subject=Subject(image="r.example/k@sha256:1", content="sha256:1"),
        suite=SUITE,
        command=("-q",),
        predictions={},
        needs=Needs(gpu="sm_90", gpus=1),
    )
    return replace(made, **changes)


def report(domain="none", suite=SUITE):
    verdict = {"ok": domain == "none", "domain": domain, "text": f"{domain} said"}
    return {"verdict": verdict, "suite_hash": suite, "checks": [], "environment": {"sm": "sm_90"}}


class Engine:
    """Runs each job on the first node that it need not avoid, as `nodes` say; a poll later it has ended."""

    name = "fake"

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
                self.status[one.key] = Status(state=State.REFUSED, cause=Cause.NO_NODE, text=text)
            else:
                self.status[one.key] = Status(state=State.RUNNING, node=free[0])
        return {one.key: self.status[one.key] for one in jobs}

    def rehearse(self, jobs):
        return [one.key for one in jobs]

    def poll(self, keys):
        self.polls += 1
        for key in keys:
            if key in self.status and self.status[key].state is State.RUNNING:
                self.end(key, self.nodes[self.status[key].node])
        return {key: self.status.get(key, Status(state=State.LOST)) for key in keys}

    def end(self, key, what):
        node = self.status[key].node
        if isinstance(what, Status):
            self.status[key] = replace(what, node=node)
        elif what:
            self.reports[key] = what if isinstance(what, KnowngoodError) else report(what)
            self.status[key] = Status(state=State.ENDED, node=node)

    def cancel(self, keys):
        self.cancelled += keys

    def logs(self, key):
        return key

    def result(self, key):
        found = self.reports[key]
        if isinstance(found, KnowngoodError):
            raise found
        return Outcome(report=found, node={"name": "x"}, when="2026-11-21T10:00:00+00:00", gpu=True)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def carry(tmp_path):
    def run(engine, jobs, *, wait=1000.0, said=None):
        clock = Clock()
        made = Run(
            executor=engine,
            kept=Kept(tmp_path / "state"),
            store=lambda found: evidence.store(found, tmp_path / "evidence").name,
            say=(said if said is not None else []).append,
            wait=wait,
            longest=5,
            clock=clock,
            sleep=clock.sleep,
        )
        return made.run(jobs)

    run.files = lambda: sorted((tmp_path / "evidence").glob("*/*.json"))
    run.state = tmp_path / "state"
    return run


def outcome(line):
    return line.verdict.end


def test_a_green_job_is_evidence_of_its_image_on_a_gpu(carry):
    engine = Engine(n1="none")
    (line,) = carry(engine, [job()])
    assert outcome(line) is End.GOOD
    (path,) = carry.files()
    found = evidence.load(path)
    assert (found.where, found.image) == (evidence.Where.CONTAINER_GPU, "sha256:1")


def test_red_on_one_node_and_green_on_another_is_green_and_the_node_is_told(carry):
    engine = Engine(n1="image", n2="none")
    (line,) = carry(engine, [job()])
    assert outcome(line) is End.GOOD
    assert "good on n2, not on n1 (image said)" in line.verdict.text
    assert [one.node for one in line.tries] == ["n1", "n2"]
    assert len(carry.files()) == 2
    kept = Kept(carry.state)
    assert kept.ledger.suspects() == {"n1": f"{CELL} failed on it (image said) and passed on n2"}
    assert json.loads(kept.nodes.read_text())["avoided"].keys() == {"n1"}
    # The next job does not go there.
    (line,) = carry(engine, [job("sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311")])
    assert [one.node for one in line.tries] == ["n2"]


def test_red_on_two_nodes_is_red(carry):
    (line,) = carry(Engine(n1="image", n2="image"), [job()])
    assert outcome(line) is End.RED
    assert line.verdict.text == "image said (on n1 and n2)"


def test_red_where_there_is_no_other_node_is_not_confirmed(carry):
    engine = Engine(n1="image")
    (line,) = carry(engine, [job()])
    assert outcome(line) is End.UNCONFIRMED
    assert "not confirmed on another node: every node is to be avoided" in line.verdict.text
    assert outcome(line).exit_code == 1
    assert engine.cancelled  # an engine may hold what it refuses


@pytest.mark.parametrize(
    ("what", "end", "code", "tries"),
    [
        ("suite", End.SUITE, 1, 1),
        ("host", End.HOST, 4, 2),
        (Status(state=State.FAILED, cause=Cause.TIME_LIMIT, text="x"), End.FAILED, 1, 1),
        (Status(state=State.FAILED, cause=Cause.MEMORY, text="x"), End.FAILED, 1, 1),
        (Status(state=State.FAILED, cause=Cause.NODE, text="x"), End.FAILED, 1, 2),
        (Status(state=State.FAILED, cause=Cause.IMAGE_PULL, text="x"), End.FAILED, 1, 2),
        (Status(state=State.FAILED, cause=Cause.CRASH, text="x"), End.RED, 1, 2),
        (Status(state=State.REFUSED, cause=Cause.QUOTA, text="x"), End.REFUSED, 4, 1),
        (Status(state=State.CANCELLED, text="x"), End.CANCELLED, 1, 1),
        (Status(state=State.LOST, text="x"), End.LOST, 3, 2),
        (KnowngoodError("half written"), End.FAILED, 1, 2),
    ],
)
def test_each_fault_has_its_end_and_the_rest_completes(carry, what, end, code, tries):
    class One(Engine):
        def end(self, key, told):
            super().end(key, what if self.jobs[key].cell == CELL else told)

    lines = carry(One(n1="none", n2="none"), [job(), job("other")])
    assert [outcome(line) for line in lines] == [end, End.GOOD]
    assert end.exit_code == code
    assert len(lines[0].tries) == tries


def test_a_report_of_another_suite_is_no_evidence(carry):
    class Old(Engine):
        def end(self, key, told):
            super().end(key, told)
            self.reports[key] = report(suite="cd" * 32)

    (line,) = carry(Old(n1="none"), [job()])
    assert outcome(line) is End.FAILED
    assert "the report is of the suite cdcdcdcdcdcd" in line.verdict.text
    assert carry.files() == []


def test_a_program_that_was_killed_takes_up_its_jobs_and_stores_a_result_once(carry):
    engine = Engine(n1=None, n2="none")  # on n1 it runs on
    (line,) = carry(engine, [job()], wait=30)
    assert outcome(line) is End.WAITING
    assert outcome(line).exit_code == 3
    assert engine.polls < 15  # it asks less and less often
    engine.nodes["n1"] = "none"
    (line,) = carry(engine, [job()])
    assert outcome(line) is End.GOOD
    assert sum(map(len, engine.submitted)) == 1
    assert len(carry.files()) == 1
    (carry.state / "state.json").write_text("{")  # damaged: the same result is delivered once more
    (line,) = carry(engine, [job()])
    assert outcome(line) is End.GOOD
    assert len(carry.files()) == 1
    # What was told is not told again: whoever asks now gets a new run.
    carry(engine, [job()])
    assert sum(map(len, engine.submitted)) == 2


def test_a_program_that_is_killed_between_two_nodes_goes_on_with_the_second(carry):
    engine = Engine(n1="image", n2=None)
    (line,) = carry(engine, [job()], wait=20)
    assert outcome(line) is End.WAITING
    engine.nodes["n2"] = "none"
    (line,) = carry(engine, [job()])
    assert outcome(line) is End.GOOD
    assert [one.node for one in line.tries] == ["n1", "n2"]


def test_an_engine_that_does_not_answer_for_a_while_is_asked_again(carry):
    class Flaky(Engine):
        def poll(self, keys):
            if self.polls < 3:
                self.polls += 1
                raise MissingError("no answer")
            return super().poll(keys)

    said = []
    (line,) = carry(Flaky(n1="none"), [job()], said=said)
    assert outcome(line) is End.GOOD
    assert said.count("no answer; asks again") == 3


def test_an_engine_that_never_answers_again_is_an_error_and_the_jobs_stay(carry):
    class Gone(Engine):
        def poll(self, _keys):
            raise MissingError("no answer")

    with pytest.raises(MissingError, match="the jobs go on, and the same command takes them up"):
        carry(Gone(n1="none"), [job()], wait=10 * PATIENCE)
    (line,) = carry(Engine(n1="none"), [job()])
    assert outcome(line) is End.GOOD


def test_tries_are_bounded():
    pulled = Try(attempt=1, state=State.FAILED, cause=Cause.IMAGE_PULL, node="n1")
    red = Try(attempt=1, state=State.ENDED, domain="image", node="n1", text="loss")
    assert isinstance(course.decide([pulled]), Again)
    assert isinstance(course.decide([pulled, pulled]), Verdict)
    assert course.decide([red]).avoid == {"n1"}
    assert course.decide([red, red]).end is End.UNCONFIRMED
    assert course.decide([red, pulled, pulled]).end is End.UNCONFIRMED


def test_a_node_is_trusted_again_when_it_passes():
    def seen(node, content, *, good):
        return ledger.Seen(node=node, cell=CELL, content=content, good=good, text="t", when="")

    book = ledger.Ledger().with_(seen("n1", "a", good=False))
    assert book.suspects() == {}  # nobody passes it
    book = book.with_(seen("n2", "a", good=True))
    assert book.suspects().keys() == {"n1"}
    assert ledger.parse(book.text()) == book
    assert book.with_(seen("n2", "a", good=True)) == book
    assert book.with_(seen("n1", "b", good=True)).suspects() == {}
    assert ledger.parse("{") is None


def test_the_answer_has_the_worst_code():
    def line(end):
        return course.Line(job=job(), verdict=Verdict(end=end, text="t"))

    def code(*lines, **refused):
        return Told(executor="x", lines=lines, refused=refused).code

    assert code(line(End.GOOD), line(End.PROVEN)) == 0
    assert code(line(End.GOOD), line(End.WAITING)) == 3
    assert code(line(End.WAITING), line(End.REFUSED)) == 4
    assert code(line(End.REFUSED), line(End.RED)) == 1
    assert code(cell=MissingError("no image")) == 4
    told = Told(executor="x", lines=[line(End.RED)], refused={"c": MissingError("no image")}, avoided={"n1": "why"})
    assert told.sentences() == [f"{CELL}: red: t", "c: refused: no image", "avoided: n1: why"]
    assert [one["outcome"] for one in told.document()["cells"]] == ["red", "refused"]


def test_one_job_a_gpu_and_the_others_as_processors_and_memory_allow():
    machine = local_room.Machine(name="m", cpus=8, memory=20, gpus={"0": "sm_90", "1": "sm_90", "2": "sm_70"})
    on_gpu = [job(f"g{number}", needs=Needs(gpu="sm_90", gpus=1, cpus=1, memory=1)) for number in range(3)]
    found = local_room.choose(on_gpu, [], machine)
    assert [(one.job.cell, one.device) for one in found] == [("g0", "0"), ("g1", "1")]
    assert local_room.choose(on_gpu[2:], [(on_gpu[0].needs, "0")], machine)[0].device == "1"
    on_cpu = [job(f"c{number}", needs=Needs(cpus=2, memory=9)) for number in range(3)]
    assert [one.job.cell for one in local_room.choose(on_cpu, [], machine)] == ["c0", "c1"]
    large = job("large", needs=Needs(cpus=2, memory=100))
    assert local_room.choose([large], [(Needs(cpus=1, memory=1), None)], machine) == []
    assert local_room.choose([large], [], machine)[0].job is large
    assert "not sm_100" in local_room.refusal(job(needs=Needs(gpu="sm_100", gpus=1)), machine)
    assert "to be avoided" in local_room.refusal(job(avoid=frozenset({"m"})), machine)
    assert local_room.refusal(on_gpu[0], machine) is None


WHOLE = """\
schema: 1
executors:
  hopper:
    engine: slurm
    folder: /shared/knowngood
    run: apptainer
    images: registry.example/team/knowngood
    gres: {sm_90: "gpu:h100"}
    at-once: 4
    options: --reservation=night
  prod:
    engine: kubernetes
    images: registry.example/team/knowngood
    pull-secrets: [one]
"""


def test_fleet_yaml_is_read():
    found = config.parse(WHOLE, "fleet.yaml")
    hopper = config.choose(found, "hopper", "fleet.yaml")
    assert (hopper.gres, hopper.at_once, hopper.options) == ({"sm_90": "gpu:h100"}, 4, ("--reservation=night",))
    assert found["prod"].pull_secrets == ("one",)
    assert isinstance(config.choose({}, "local", "fleet.yaml"), config.Local)
    with pytest.raises(UsageError, match="there are hopper, prod, local"):
        config.choose(found, "ampere", "fleet.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- x\n", "1:1: the file must be a mapping with `schema` and `executors`"),
        ("schema: 2\nexecutors: {}\n", "1:9: `schema` must be 1"),
        ("schema: 1\nexecutors: {}\nfoo: 1\n", "3:1: unknown key 'foo'; the keys here are schema, executors"),
        ("schema: 1\nexecutors:\n  A: {engine: local}\n", "3:3: 'A' is not written like a name"),
        ("schema: 1\nexecutors:\n  a: 3\n", "3:6: an executor is a mapping"),
        ("schema: 1\nexecutors:\n  a: {engine: pbs}\n", "3:15: `engine` must be one of local, slurm, kubernetes"),
        (WHOLE.replace("/shared", "shared"), "5:13: 'shared/knowngood' is not an absolute path"),
        (WHOLE.replace("at-once: 4", "at-once: x"), "9:14: executors.hopper.at-once is malformed"),
        (WHOLE.replace("at-once", "atonce"), "9:5: unknown key 'atonce'; did you mean 'at-once'?"),
        (WHOLE.replace("sm_90", "sm90"), "8:12: 'sm90' is not written like sm_90"),
        (WHOLE.replace("--reservation=night", "night"), "10:14: 'night' is not an option of sbatch"),
        (WHOLE.replace("run: apptainer", "run: environment"), "4:5: `run: environment` needs `environments`"),
        (WHOLE.replace("images: registry.example/team/knowngood\n    gres", "environments: /e\n    gres"),
         "7:19: '/e' names one folder for all cells"),
        (WHOLE.replace("pull-secrets: [one]", "namespace: ''"), "14:16: "),
    ],
)  # fmt: skip
def test_a_defect_of_fleet_yaml_has_its_line_and_column(text, problem):
    with pytest.raises(InputError) as caught:
        config.parse(text, "fleet.yaml")
    assert f"fleet.yaml:{problem}" in str(caught.value)
