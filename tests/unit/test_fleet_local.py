"""The machine at hand as an executor: environments as processes that outlive the program."""

from __future__ import annotations

import time

import pytest

from knowngood.errors import KnowngoodError
from knowngood.fleet.job import Cause, Job, Needs, State, Subject
from knowngood.fleet.local import Local
from knowngood.fleet.local_processes import Processes
from knowngood.fleet.local_room import Machine

PYTHON = r"""#!/bin/sh
while [ "$1" != --report ]; do [ "$1" = --sleep ] && sleep 30; [ "$1" = --crash ] && exit 7; shift; done
gpu="\"gpu\": \"$CUDA_VISIBLE_DEVICES\""
echo "{\"verdict\": {\"ok\": true}, \"suite_hash\": \"x\", \"environment\": {\"sm\": null}, $gpu}" > "$2"
"""
MACHINE = Machine(name="here", cpus=2, memory=20, gpus={"0": "sm_90", "1": "sm_90"})


@pytest.fixture
def site(tmp_path):
    python = tmp_path / "environment/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    folder = tmp_path / "jobs"
    made = []

    def local():
        def never():
            raise AssertionError("no engine is needed for an environment")

        made.append(Local("local", folder, lambda: MACHINE, never, lambda: Processes(tmp_path, folder)))
        return made[-1]

    def job(cell, *command, environment=tmp_path / "environment", **needs):
        needs = {"cpus": 1, "memory": 1, "seconds": 60} | needs
        subject = Subject(environment=str(environment), content="x")
        return Job(cell=cell, subject=subject, suite="x", command=command, predictions={}, needs=Needs(**needs))

    keys = []
    yield local, lambda *words, **needs: keys.append(one := job(*words, **needs)) or one
    made[-1].cancel([one.key for one in keys])


def until_final(local, jobs):
    deadline = time.monotonic() + 30
    while True:
        said = local.poll([one.key for one in jobs])
        if all(status.state.final for status in said.values()):
            return [said[one.key] for one in jobs]
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def test_each_gpu_has_one_job(site):
    local, job = site
    here = local()
    jobs = [job(f"g{number}", gpu="sm_90", gpus=1, cpus=0) for number in range(4)]
    here.submit(jobs)
    assert [one.state for one in until_final(here, jobs)] == [State.ENDED] * 4
    assert {here.result(one.key).report["gpu"] for one in jobs} == {"0", "1"}
    (refused,) = here.submit([job("v100", gpu="sm_70", gpus=1)]).values()
    assert (refused.state, refused.cause) == (State.REFUSED, Cause.NO_NODE)
    assert "this machine has sm_90, not sm_70" in refused.text


def test_a_job_that_dies_says_so_and_the_next_one_begins(site):
    local, job = site
    here = local()
    jobs = [job("crash", "--crash", cpus=2), job("good", cpus=2), job("none", environment="/no/such")]
    assert {one.state for one in here.submit(jobs[:2]).values()} == {State.RUNNING, State.QUEUED}
    crash, good = until_final(here, jobs[:2])
    assert (crash.state, crash.cause, crash.node) == (State.FAILED, Cause.CRASH, "here")
    assert "ended with 7" in crash.text
    assert good.state is State.ENDED
    assert here.result(jobs[1].key).node.keys() == {"name", "kernel", "cpus"}
    with pytest.raises(KnowngoodError, match="there is no result"):
        here.result(jobs[0].key)
    here.submit(jobs[2:])
    (none,) = until_final(here, jobs[2:])
    assert "there is no environment: /no/such/bin/python" in none.text


def test_a_program_that_is_started_again_finds_its_job_and_can_end_it(site):
    local, job = site
    one = job("long", "--sleep")
    local().submit([one])
    assert local().submit([one])[one.key].state is State.RUNNING
    again = local()
    again.cancel([one.key])
    assert again.poll([one.key])[one.key].state is State.CANCELLED
    assert local().poll([one.key])[one.key].state is State.LOST


def test_a_job_that_was_killed_is_told(site):
    local, job = site
    one = job("long", "--sleep")
    here = local()
    here.submit([one])
    here._works["environment"].stop(one.key)
    (status,) = until_final(here, [one])
    assert status.state is State.LOST
