"""The Slurm executor; its Slurm is a fake. A real one is in tests/integration."""

from __future__ import annotations

import json

import pytest
from slurm_samples import DIGEST, SUITE, bare, job

from knowngood.core.errors import MissingError
from knowngood.executors import job_script
from knowngood.executors.job import FailureCause, JobNeeds, JobState, JobSubject
from knowngood.executors.slurm_commands import SlurmAnswer
from knowngood.executors.slurm_executor import SlurmExecutor
from knowngood.executors.slurm_states import SACCT, SQUEUE


class Fake:
    """Slurm's commands: an array number for each submission, and lines for squeue."""

    def __init__(self):
        self.commands, self.lines, self.accounts = [], [], None
        self.refuse = self.silent = ""
        self.now = 0.0

    def __call__(self, words):
        self.commands.append(words[0])
        if self.silent:
            return SlurmAnswer(code=1, out="", err=self.silent)
        if words[0] == "sbatch":
            if self.refuse:
                return SlurmAnswer(code=1, out="", err=self.refuse)
            return SlurmAnswer(code=0, out=f"{self.commands.count('sbatch')};cluster\n", err="")
        if list(words[: len(SQUEUE)]) == list(SQUEUE):
            return SlurmAnswer(code=0, out="\n".join(self.lines), err="")
        if list(words[: len(SACCT)]) == list(SACCT):
            off = "Slurm accounting storage is disabled"
            return SlurmAnswer(code=self.accounts is None, out=self.accounts or "", err=off)
        return SlurmAnswer(code=0, out="n1\nn2\n" if words[0] == "sinfo" else "", err="")


@pytest.fixture
def slurm(tmp_path):
    def build(fake):
        shared = bare(folder=str(tmp_path / "shared"))
        return SlurmExecutor("lab", shared, fake, clock=lambda: fake.now)

    return build


def here(cell, **changes):
    return job(cell, subject=JobSubject(environment=f"/e/{cell}", content=DIGEST), **changes)


def line(array, index, state, reason="None"):
    return f"{array}|{index}|{state}|{reason}|n1|2026-11-21T14:00:00|2026-11-21T14:00:01|2026-11-21T14:00:02"


def test_200_jobs_are_one_sbatch_and_few_calls_of_squeue(slurm):
    fake = Fake()
    lab, jobs = slurm(fake), [here(f"c{number}") for number in range(200)]
    assert {status.state for status in lab.submit(jobs).values()} == {JobState.QUEUED}
    fake.lines = [line(1, index, "RUNNING") for index in range(200)]
    keys = [one.key for one in jobs]
    for second in range(0, 600, 5):
        fake.now = float(second)
        assert {status.state for status in lab.poll(keys).values()} <= {JobState.QUEUED, JobState.RUNNING}
    assert fake.commands.count("sbatch") == 1
    assert fake.commands.count("squeue") < 30
    assert (lab._files.suite(SUITE) / "conftest.py").exists()


def test_each_job_finds_the_suite_of_its_cell_on_shared_storage(slurm, tmp_path):
    own = tmp_path / "own/smoke_tests"
    own.mkdir(parents=True)
    (own / "test_trainer.py").write_text("")
    lab, other = slurm(Fake()), "cd" * 32
    lab.submit([here("a"), here("b", suite=other, suite_folder=own)])
    assert [path.name for path in lab._files.suite(other).iterdir()] == ["test_trainer.py"]
    assert not (lab._files.suite(SUITE) / "test_trainer.py").exists()
    scripts = [
        (lab._files.job(job.key).path / job_script.SCRIPT_FILE).read_text()
        for job in (here("a"), here("b", suite=other))
    ]
    assert all(str(lab._files.suite(digest)) in script for digest, script in zip((SUITE, other), scripts, strict=True))


def test_a_restarted_program_finds_its_jobs(slurm, tmp_path):
    fake = Fake()
    slurm(fake).submit([here("a")])
    fake.lines = [line(1, 0, "RUNNING")]
    lab = slurm(fake)
    assert lab.submit([here("a")])[here("a").key].state is JobState.RUNNING
    assert fake.commands.count("sbatch") == 1
    # It was killed before it could write down the number: Slurm knows it by the array's name.
    (array,) = tmp_path.glob("shared/batches/*/array")
    array.unlink()
    named = []

    def answer(words):
        if any(word.startswith("--name=") for word in words):
            named.append(words)
            return SlurmAnswer(code=0, out="1\n", err="")
        return fake(words)

    answer.now = 0.0
    assert slurm(answer).poll([here("a").key])[here("a").key].state is JobState.RUNNING
    assert len(named) == 1
    assert array.read_text() == "1\n"


def test_sacct_is_asked_about_jobs_that_squeue_has_forgotten_and_else_the_files_count(slurm):
    fake = Fake()
    lab, one = slurm(fake), here("a")
    lab.submit([one])
    fake.accounts = "1_0|NODE_FAIL|None|n1|2026-11-21T14:00:00|2026-11-21T14:00:01|2026-11-21T14:00:02\n"
    fake.now = 10
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.NODE)
    fake.accounts = None
    lab = slurm(fake)
    assert lab.poll([one.key])[one.key].state is JobState.LOST
    (lab._files.job(one.key).path / job_script.NODE_FILE).write_text("n1\n")
    fake.now = 20
    assert "it started on n1 and left nothing" in lab.poll([one.key])[one.key].text
    (lab._files.job(one.key).path / job_script.FAILURE_FILE).write_text("image-pull\nno such image\n")
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.IMAGE_PULL)
    assert fake.commands.count("sacct") == 2  # once a program, where there is no accounting


def test_a_result_that_is_late_on_shared_storage_is_waited_for(slurm):
    fake = Fake()
    lab, one = slurm(fake), here("a")
    lab.submit([one])
    fake.lines = [line(1, 0, "COMPLETED")]
    states = []
    for second in range(0, 1000, 50):
        fake.now = float(second)
        states.append(lab.poll([one.key])[one.key])
    assert [status.state for status in states[:6]] == [*[JobState.RUNNING] * 5, JobState.FAILED]
    assert (states[-1].state, states[-1].cause) == (JobState.FAILED, FailureCause.CRASH)
    assert "there is no result in" in states[-1].text
    lab = slurm(fake)
    outcome = {
        "schema": job_script.OUTCOME_SCHEMA,
        "key": one.key,
        "when": "2026-11-21T14:00:02+00:00",
        "node": {"name": "n1"},
    }
    outcome["report"] = {"verdict": {"ok": True}, "suite_hash": "x", "environment": {"sm": "sm_90"}}
    (lab._files.job(one.key).path / job_script.OUTCOME_FILE).write_text(json.dumps(outcome))
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.node, status.ran) == (JobState.ENDED, "n1", 1)
    result = lab.result(one.key)
    assert result.gpu
    assert result.node["name"] != "n1"  # evidence is public


def test_a_refused_batch_leaves_the_others(slurm):
    fake = Fake()
    lab = slurm(fake)
    fake.refuse = "sbatch: error: Batch job submission failed: Invalid feature specification"
    refused = lab.submit([here("a")])[here("a").key]
    assert (refused.state, refused.cause) == (JobState.REFUSED, FailureCause.NO_NODE)
    fake.refuse = ""
    assert (
        lab.submit([here("a"), here("b", needs=JobNeeds())])[here("b", needs=JobNeeds()).key].state is JobState.QUEUED
    )
    assert lab.poll([here("a").key])[here("a").key].state is JobState.REFUSED


def test_a_controller_that_does_not_answer_says_nothing_about_the_jobs(slurm):
    fake = Fake()
    lab, one = slurm(fake), here("a")
    fake.silent = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    with pytest.raises(MissingError, match="lab: Slurm does not answer"):
        lab.submit([one])
    fake.silent = "sbatch: error: Batch job submission failed: Protocol authentication error"
    with pytest.raises(MissingError, match="is the clock of this machine right"):
        lab.submit([one])
    fake.silent = ""
    assert lab.submit([one])[one.key].state is JobState.QUEUED
    fake.silent, fake.now = "slurm_load_jobs error: Unable to contact slurm controller", 10
    with pytest.raises(MissingError):
        lab.poll([one.key])
    (lab._files.job(one.key).path / job_script.FAILURE_FILE).write_text("crash\nit died\n")
    fake.silent, fake.lines = "", [line(1, 0, "RUNNING")]
    lab.poll([one.key])
    fake.silent, fake.now = "slurm_load_jobs error: Unable to contact slurm controller", 100
    assert lab.poll([one.key])[one.key].state is JobState.FAILED  # its files say so all the same


def test_only_existing_nodes_are_avoided(slurm, tmp_path):
    lab = slurm(Fake())
    lab.submit([here("a", avoid=frozenset({"n1", "gone"}))])
    (script,) = tmp_path.glob("shared/batches/*/script.sh")
    assert "#SBATCH --exclude=n1\n" in script.read_text()


def test_a_dry_run_prints_everything_and_runs_no_command(slurm):
    fake = Fake()
    text = "\n".join(slurm(fake).rehearse([here("a"), here("b")]))
    assert fake.commands == []
    assert text.count("#SBATCH --array=0-1") == 1
    assert text.count("-m pytest") == 2
    assert "sbatch --parsable " in text.splitlines()[-1]


def test_a_missing_shared_folder_is_reported(tmp_path):
    lab = SlurmExecutor("lab", bare(folder=str(tmp_path / "no/such")), Fake())
    with pytest.raises(MissingError, match=r"lab: the shared folder .*/no/such cannot be used: No such file"):
        lab.submit([here("a")])
