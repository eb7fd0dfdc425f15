"""The machine at hand as an executor: environments as processes that outlive the program."""

from __future__ import annotations

import time

import pytest
from job_samples import job as sample_job

from knowngood.core.errors import KnowngoodError
from knowngood.executors import local_capacity
from knowngood.executors.job import FailureCause, JobNeeds, JobState, JobSubject, SuiteJob
from knowngood.executors.local_capacity import LocalMachine
from knowngood.executors.local_executor import LocalExecutor
from knowngood.executors.local_workers import ProcessWorker

PYTHON = r"""#!/bin/sh
while [ "$1" != --report ]; do [ "$1" = --sleep ] && sleep 30; [ "$1" = --crash ] && exit 7; shift; done
gpu="\"gpu\": \"$CUDA_VISIBLE_DEVICES\""
echo "{\"verdict\": {\"ok\": true}, \"suite_hash\": \"x\", \"environment\": {\"sm\": null}, $gpu}" > "$2"
"""
MACHINE = LocalMachine(name="here", cpus=2, memory=20, gpus={"0": "sm_90", "1": "sm_90"})


@pytest.fixture
def site(tmp_path):
    python = tmp_path / "environment/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    folder, suite = tmp_path / "jobs", tmp_path / "suite"
    suite.mkdir()
    made = []

    def local():
        def never():
            raise AssertionError("no engine is needed for an environment")

        made.append(
            LocalExecutor(
                "local",
                folder,
                machine=lambda: MACHINE,
                images=never,
                environments=lambda: ProcessWorker(folder),
            )
        )
        return made[-1]

    def job(cell, *command, environment=tmp_path / "environment", **needs):
        needs = {"cpus": 1, "memory": 1, "seconds": 60} | needs
        subject = JobSubject(environment=str(environment), content="x")
        return SuiteJob(
            cell=cell,
            subject=subject,
            suite="x",
            suite_folder=suite,
            command=command,
            predictions={},
            needs=JobNeeds(**needs),
        )

    keys = []
    yield local, lambda *words, **needs: keys.append(one := job(*words, **needs)) or one
    made[-1].cancel([one.key for one in keys])


def until_final(local, jobs):
    deadline = time.monotonic() + 30
    while True:
        statuses = local.poll([one.key for one in jobs])
        if all(status.state.is_final for status in statuses.values()):
            return [statuses[one.key] for one in jobs]
        assert time.monotonic() < deadline, statuses
        time.sleep(0.05)


def test_each_gpu_has_one_job(site):
    local, job = site
    here = local()
    jobs = [job(f"g{number}", gpu="sm_90", gpus=1, cpus=0) for number in range(4)]
    here.submit(jobs)
    assert [one.state for one in until_final(here, jobs)] == [JobState.ENDED] * 4
    assert {here.result(one.key).report["gpu"] for one in jobs} == {"0", "1"}
    (refused,) = here.submit([job("v100", gpu="sm_70", gpus=1)]).values()
    assert (refused.state, refused.cause) == (JobState.REFUSED, FailureCause.NO_NODE)
    assert "this machine has sm_90, not sm_70" in refused.text


def test_a_crashed_job_is_reported_and_the_next_one_starts(site):
    local, job = site
    here = local()
    jobs = [job("crash", "--crash", cpus=2), job("good", cpus=2), job("none", environment="/no/such")]
    assert {one.state for one in here.submit(jobs[:2]).values()} == {JobState.RUNNING, JobState.QUEUED}
    crash, good = until_final(here, jobs[:2])
    assert (crash.state, crash.cause, crash.node) == (JobState.FAILED, FailureCause.CRASH, "here")
    assert "ended with 7" in crash.text
    assert good.state is JobState.ENDED
    assert here.result(jobs[1].key).node.keys() == {"name", "kernel", "cpus"}
    with pytest.raises(KnowngoodError, match="there is no result"):
        here.result(jobs[0].key)
    here.submit(jobs[2:])
    (none,) = until_final(here, jobs[2:])
    assert "there is no environment: /no/such/bin/python" in none.text


def test_a_restarted_program_finds_its_job_and_can_end_it(site):
    local, job = site
    one = job("long", "--sleep")
    local().submit([one])
    assert local().submit([one])[one.key].state is JobState.RUNNING
    again = local()
    again.cancel([one.key])
    assert again.poll([one.key])[one.key].state is JobState.CANCELLED
    assert local().poll([one.key])[one.key].state is JobState.LOST


def test_a_job_whose_process_was_killed_is_lost(site):
    local, job = site
    one = job("long", "--sleep")
    here = local()
    here.submit([one])
    here._workers["environment"].stop_job(one.key)
    (status,) = until_final(here, [one])
    assert status.state is JobState.LOST


def test_one_job_per_gpu_and_the_others_as_processors_and_memory_allow():
    machine = local_capacity.LocalMachine(name="m", cpus=8, memory=20, gpus={"0": "sm_90", "1": "sm_90", "2": "sm_70"})
    on_gpu = [sample_job(f"g{number}", needs=JobNeeds(gpu="sm_90", gpus=1, cpus=1, memory=1)) for number in range(3)]
    placements = local_capacity.choose_placements(on_gpu, [], machine)
    assert [(one.job.cell, one.device) for one in placements] == [("g0", "0"), ("g1", "1")]
    assert local_capacity.choose_placements(on_gpu[2:], [(on_gpu[0].needs, "0")], machine)[0].device == "1"
    on_cpu = [sample_job(f"c{number}", needs=JobNeeds(cpus=2, memory=9)) for number in range(3)]
    assert [one.job.cell for one in local_capacity.choose_placements(on_cpu, [], machine)] == ["c0", "c1"]
    exact = [sample_job(f"e{number}", needs=JobNeeds(cpus=4, memory=10)) for number in range(3)]
    assert [one.job.cell for one in local_capacity.choose_placements(exact, [], machine)] == ["e0", "e1"]
    large = sample_job("large", needs=JobNeeds(cpus=2, memory=100))
    assert local_capacity.choose_placements([large], [(JobNeeds(cpus=1, memory=1), None)], machine) == []
    assert local_capacity.choose_placements([large], [], machine)[0].job is large
    assert "not sm_100" in local_capacity.machine_refusal(sample_job(needs=JobNeeds(gpu="sm_100", gpus=1)), machine)
    assert "the job must avoid it" in local_capacity.machine_refusal(sample_job(avoid=frozenset({"m"})), machine)
    assert local_capacity.machine_refusal(on_gpu[0], machine) is None
    several = sample_job(needs=JobNeeds(gpu="sm_90", gpus=2))
    assert "the job needs several" in local_capacity.machine_refusal(several, machine)
