"""Slurm: scripts, what its commands say, and an executor whose Slurm is a fake; a real one is in tests/integration."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from knowngood.errors import KnowngoodError, MissingError
from knowngood.fleet import config, shell, slurm_script, slurm_states
from knowngood.fleet.job import Cause, Job, Needs, State, Subject
from knowngood.fleet.slurm import Slurm
from knowngood.fleet.slurm_commands import Done
from knowngood.fleet.slurm_states import SACCT, SQUEUE

SUITE = "ab" * 32
DIGEST = "sha256:" + "0" * 64


def job(cell="c", **changes):
    made = Job(
        cell=cell,
        subject=Subject(image=f"registry.example/team/knowngood@{DIGEST}", content=DIGEST),
        suite=SUITE,
        command=("-q", "--quick"),
        predictions={"a/*": {"outcome": "refused"}},
        needs=Needs(gpu="sm_90", gpus=1, memory=12 << 30, seconds=1200),
    )
    return replace(made, **changes)


def settings(**changes):
    given = {"engine": "slurm", "folder": "/shared/knowngood", "run": "apptainer"}
    given |= {"images": "registry.example/team/knowngood"}
    return config.Slurm(**given | changes)


def bare(**changes):
    return settings(run="environment", images=None, environments="/e/{cell}", **changes)


def options(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_the_script_of_an_array():
    batch = [job("a"), job("b")]
    name = slurm_script.name(batch)
    text = slurm_script.script(batch, settings(), ["n2", "n1"])
    assert options(text) == [
        f"--job-name={name}",
        "--array=0-1",
        f"--output=/shared/knowngood/batches/{name}/%a.log",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=2",
        "--mem=12288M",
        "--time=22",
        "--gres=gpu:1",
        "--constraint=sm_90",
        "--exclude=n1,n2",
        "--requeue",
    ]
    assert text.endswith(
        f'key=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" /shared/knowngood/batches/{name}/keys)\n'
        'exec sh /shared/knowngood/jobs/"$key"/run.sh\n'
    )


def test_what_a_site_says_is_in_the_script():
    site = settings(
        partition="gpu",
        account="ml",
        qos="night",
        gres={"sm_90": "gpu:h100"},
        options=["--reservation=x", "--time=5"],
        **{"at-once": 4},
    )
    told = options(slurm_script.script([job("a"), job("b")], site))
    assert "--array=0-1%4" in told
    assert {"--partition=gpu", "--account=ml", "--qos=night", "--gres=gpu:h100:1"} <= set(told)
    assert not any(one.startswith("--constraint") for one in told)  # the type says it
    assert told[-2:] == ["--reservation=x", "--time=5"]
    told = options(slurm_script.script([job()], settings(constraint={"sm_90": "hopper"})))
    assert "--constraint=hopper" in told
    told = options(slurm_script.script([job(needs=Needs())], settings()))
    assert not any(one.startswith(("--gres", "--constraint")) for one in told)


def test_jobs_that_need_the_same_are_one_array():
    many = [job(f"c{number}") for number in range(200)]
    assert [len(batch) for batch in slurm_script.batches(many)] == [200]
    assert [len(batch) for batch in slurm_script.batches([job(f"c{number}") for number in range(1500)])] == [1000, 500]
    apart = [job("a"), job("b", needs=Needs()), job("c", avoid=frozenset({"n1"}))]
    assert len(slurm_script.batches(apart)) == 3
    assert slurm_script.name(many) == slurm_script.name(many)
    assert slurm_script.name(many) != slurm_script.name(many[1:])


def made(one, site):
    way = slurm_script.way(one, site, suite_in_image="/opt/suite", suite="/shared/suite")
    return shell.script(one, "/shared/jobs/k", way)


def test_apptainer_and_pyxis_get_the_image_by_its_digest():
    text = made(job(), settings(prepare="module load apptainer"))
    file = f"/shared/knowngood/images/{'0' * 64}.sif"
    assert f'apptainer pull {file}."$mine" docker://registry.example/team/knowngood@{DIGEST}' in text
    assert f'&& mv -f {file}."$mine" {file}; }} || finish image-pull' in text
    assert "apptainer exec --nv --cleanenv --contain" in text
    assert (
        f"{file} timeout --kill-after=10 1200 python -m pytest /opt/suite -q --quick --report /mnt/report.json" in text
    )
    assert text.index("module load apptainer") < text.index("apptainer pull")
    assert '--bind "$work:/mnt,$work/cache:/cache"' in text  # the image compiles into /cache
    assert text.index('mkdir "$work/cache"') < text.index("apptainer exec")
    assert "--nv" not in made(job(needs=Needs()), settings())
    text = made(job(), settings(run="pyxis"))
    assert f"--container-image=registry.example#team/knowngood:{DIGEST}" in text
    assert "true || finish image-pull" in text


@pytest.fixture
def node(tmp_path):
    """Runs a job's script as a node would, with a Python that is `body`."""

    def run(body, seconds=30):
        environment = tmp_path / "environment"
        python = environment / "bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f'#!/bin/sh\nwhile [ "$1" != --report ]; do shift; done\n{body}\n')
        python.chmod(0o755)
        one = job(subject=Subject(environment=str(environment), content=DIGEST), needs=Needs(seconds=seconds))
        folder = tmp_path / "job"
        folder.mkdir(exist_ok=True)
        (folder / shell.PREDICTIONS).write_text("{}")
        way = shell.Way(name=shell.BARE, python=str(python), suite="suite", folder='"$work"')
        (folder / shell.SCRIPT).write_text(shell.script(one, str(folder), way))
        done = subprocess.run(
            ["sh", str(folder / shell.SCRIPT)],
            env={"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "n7", "TMPDIR": str(tmp_path)},
            capture_output=True,
            check=False,
        )
        assert [path for path in tmp_path.iterdir() if path.name.startswith("knowngood.")] == []  # nothing is left
        return one, folder, done.returncode

    return run


GREEN = """printf '{"verdict": {"ok": true}, "suite_hash": "x"}' > "$2" """


def test_a_script_leaves_an_outcome_with_its_key_and_node(node):
    one, folder, code = node(GREEN)
    left = shell.outcome((folder / shell.OUTCOME).read_bytes(), one.key)
    assert (code, left.node["name"], left.node["runtime"]) == (0, "n7", "environment")
    assert left.report["verdict"]["ok"]
    assert not (folder / shell.END).exists()
    with pytest.raises(KnowngoodError, match="the result in its folder is of job"):
        shell.outcome((folder / shell.OUTCOME).read_bytes(), "another")
    whole = (folder / shell.OUTCOME).read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 2):
        with pytest.raises(KnowngoodError, match="half written or damaged"):
            shell.outcome(whole[:size], one.key)
    node("exit 1")  # begun again by Slurm: the result that there is stays
    assert (folder / shell.OUTCOME).read_bytes() == whole


@pytest.mark.parametrize(
    ("body", "cause", "text"),
    [
        ("exit 139", Cause.CRASH, "the suite's process ended with 139"),
        ("exit 0", Cause.CRASH, "the suite ended with 0 and left no report"),
        ("exit 137", Cause.MEMORY, "the suite was killed after"),
        ("sleep 20", Cause.TIME_LIMIT, "the suite did not end within 1 s"),
    ],
)
def test_a_script_says_why_there_is_no_outcome(node, body, cause, text):
    _, folder, code = node(body, seconds=1)
    end = shell.end((folder / shell.END).read_text())
    assert (code, end.cause) == (1, cause)
    assert text in end.text
    assert not (folder / shell.OUTCOME).exists()
    assert shell.end("crash\nhalf a sen") is None


@pytest.mark.parametrize(
    ("state", "reason", "wanted", "cause"),
    [
        ("PENDING", "Resources", State.QUEUED, None),
        ("PENDING", "QOSGrpCpuLimit", State.QUEUED, None),
        ("PENDING", "QOSMaxCpuPerJobLimit", State.REFUSED, Cause.QUOTA),
        ("PENDING", "AssocMaxCpuMinutesPerJobLimit", State.REFUSED, Cause.QUOTA),
        ("PENDING", "PartitionTimeLimit", State.REFUSED, Cause.ENGINE),
        ("PENDING", "BadConstraints", State.REFUSED, Cause.NO_NODE),
        ("REQUEUED", "None", State.QUEUED, None),
        ("RUNNING", "None", State.RUNNING, None),
        ("COMPLETING", "None", State.RUNNING, None),
        ("COMPLETED", "None", State.ENDED, None),
        ("CANCELLED by 0", "None", State.CANCELLED, None),
        ("FAILED", "NonZeroExitCode", State.FAILED, Cause.CRASH),
        ("TIMEOUT", "TimeLimit", State.FAILED, Cause.TIME_LIMIT),
        ("OUT_OF_MEMORY", "OutOfMemory", State.FAILED, Cause.MEMORY),
        ("NODE_FAIL", "NodeDown", State.FAILED, Cause.NODE),
        ("BOOT_FAIL", "None", State.FAILED, Cause.NODE),
    ],
)
def test_states_of_slurm(state, reason, wanted, cause):
    times = "2026-11-21T14:00:00|2026-11-21T14:00:05|2026-11-21T14:01:05"
    ((place, said),) = slurm_states.read(f"12|3|{state}|{reason}|n1|{times}\n")
    assert place == ("12", 3)
    status = slurm_states.status(said)
    assert (status.state, status.cause) == (wanted, cause)
    ((_, accounted),) = slurm_states.read_accounts(f"12_3|{state}|{reason}|n1|{times}\n")
    assert accounted == said


def test_times_are_those_of_the_cluster():
    ((_, said),) = slurm_states.read(
        "1|0|COMPLETED|None|n1|2026-11-21T14:00:00|2026-11-21T14:00:05|2026-11-21T14:01:05"
    )
    assert (said.queued, said.ran) == (5, 60)
    ((_, said),) = slurm_states.read("1|0|PENDING|Resources||2026-11-21T14:00:00|N/A|N/A")
    assert (said.queued, said.ran, said.node) == (None, None, None)
    assert list(slurm_states.read("garbage\n1|2\n")) == []
    assert list(slurm_states.read_accounts("1_[2-5]|PENDING|None|None assigned|x|Unknown|Unknown\n")) == []


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "sbatch: error: invalid partition specified: nope\nsbatch: error: Invalid partition name specified",
            Cause.ENGINE,
        ),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", Cause.NO_NODE),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", Cause.NO_NODE),
        (
            "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit",
            Cause.QUOTA,
        ),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", Cause.ENGINE),
    ],
)
def test_refusals_of_sbatch(said, cause):
    status = slurm_states.refusal(said)
    assert (status.state, status.cause) == (State.REFUSED, cause)
    assert "sbatch: error" not in status.text
    assert not slurm_states.unanswered(said)
    assert slurm_states.unanswered("sbatch: error: Batch job submission failed: Unable to contact slurm controller")


class Fake:
    """Slurm's commands: an array number for each submission, and lines for squeue."""

    def __init__(self):
        self.asked, self.lines, self.accounts = [], [], None
        self.refuse = self.silent = ""
        self.now = 0.0

    def __call__(self, words):
        self.asked.append(words[0])
        if self.silent:
            return Done(code=1, out="", err=self.silent)
        if words[0] == "sbatch":
            if self.refuse:
                return Done(code=1, out="", err=self.refuse)
            return Done(code=0, out=f"{self.asked.count('sbatch')};cluster\n", err="")
        if list(words[: len(SQUEUE)]) == list(SQUEUE):
            return Done(code=0, out="\n".join(self.lines), err="")
        if list(words[: len(SACCT)]) == list(SACCT):
            off = "Slurm accounting storage is disabled"
            return Done(code=self.accounts is None, out=self.accounts or "", err=off)
        return Done(code=0, out="n1\nn2\n" if words[0] == "sinfo" else "", err="")


@pytest.fixture
def slurm(tmp_path):
    suite = tmp_path / "smoke_tests"
    suite.mkdir()
    (suite / "test_it.py").write_text("")

    def build(fake):
        shared = bare(folder=str(tmp_path / "shared"))
        return Slurm("lab", shared, suite, fake, clock=lambda: fake.now)

    return build


def here(cell, **changes):
    return job(cell, subject=Subject(environment=f"/e/{cell}", content=DIGEST), **changes)


def line(array, index, state, reason="None"):
    return f"{array}|{index}|{state}|{reason}|n1|2026-11-21T14:00:00|2026-11-21T14:00:01|2026-11-21T14:00:02"


def test_200_jobs_are_one_sbatch_and_the_clock_says_when_squeue_is_asked(slurm):
    fake = Fake()
    lab, jobs = slurm(fake), [here(f"c{number}") for number in range(200)]
    assert {status.state for status in lab.submit(jobs).values()} == {State.QUEUED}
    fake.lines = [line(1, index, "RUNNING") for index in range(200)]
    keys = [one.key for one in jobs]
    for second in range(0, 600, 5):
        fake.now = float(second)
        assert {status.state for status in lab.poll(keys).values()} <= {State.QUEUED, State.RUNNING}
    assert fake.asked.count("sbatch") == 1
    assert fake.asked.count("squeue") < 30
    assert (lab._files.suite(SUITE) / "test_it.py").exists()


def test_a_program_that_is_started_again_finds_its_jobs(slurm, tmp_path):
    fake = Fake()
    slurm(fake).submit([here("a")])
    fake.lines = [line(1, 0, "RUNNING")]
    lab = slurm(fake)
    assert lab.submit([here("a")])[here("a").key].state is State.RUNNING
    assert fake.asked.count("sbatch") == 1
    # It was killed before it could write down the number: Slurm knows it by the array's name.
    (array,) = tmp_path.glob("shared/batches/*/array")
    array.unlink()
    named = []

    def found(words):
        if any(word.startswith("--name=") for word in words):
            named.append(words)
            return Done(code=0, out="1\n", err="")
        return fake(words)

    found.now = 0.0
    assert slurm(found).poll([here("a").key])[here("a").key].state is State.RUNNING
    assert len(named) == 1
    assert array.read_text() == "1\n"


def test_what_squeue_has_forgotten_is_asked_of_sacct_and_else_told_by_files(slurm):
    fake = Fake()
    lab, one = slurm(fake), here("a")
    lab.submit([one])
    fake.accounts = "1_0|NODE_FAIL|None|n1|2026-11-21T14:00:00|2026-11-21T14:00:01|2026-11-21T14:00:02\n"
    fake.now = 10
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.cause) == (State.FAILED, Cause.NODE)
    fake.accounts = None
    lab = slurm(fake)
    assert lab.poll([one.key])[one.key].state is State.LOST
    (lab._files.job(one.key) / shell.BEGAN).write_text("n1\n")
    fake.now = 20
    assert "it began on n1 and left nothing" in lab.poll([one.key])[one.key].text
    (lab._files.job(one.key) / shell.END).write_text("image-pull\nno such image\n")
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.cause) == (State.FAILED, Cause.IMAGE_PULL)
    assert fake.asked.count("sacct") == 2  # once a program, where there is no accounting


def test_a_result_that_is_late_on_shared_storage_is_waited_for(slurm):
    fake = Fake()
    lab, one = slurm(fake), here("a")
    lab.submit([one])
    fake.lines = [line(1, 0, "COMPLETED")]
    states = []
    for second in range(0, 1000, 50):
        fake.now = float(second)
        states.append(lab.poll([one.key])[one.key])
    assert [status.state for status in states[:6]] == [*[State.RUNNING] * 5, State.FAILED]
    assert (states[-1].state, states[-1].cause) == (State.FAILED, Cause.CRASH)
    assert "there is no result in" in states[-1].text
    lab = slurm(fake)
    outcome = {"schema": shell.SCHEMA, "key": one.key, "when": "2026-11-21T14:00:02+00:00", "node": {"name": "n1"}}
    outcome["report"] = {"verdict": {"ok": True}, "suite_hash": "x", "environment": {"sm": "sm_90"}}
    (lab._files.job(one.key) / shell.OUTCOME).write_text(json.dumps(outcome))
    status = lab.poll([one.key])[one.key]
    assert (status.state, status.node, status.ran) == (State.ENDED, "n1", 1)
    result = lab.result(one.key)
    assert result.gpu
    assert result.node["name"] != "n1"  # evidence is public


def test_a_refused_batch_leaves_the_others(slurm):
    fake = Fake()
    lab = slurm(fake)
    fake.refuse = "sbatch: error: Batch job submission failed: Invalid feature specification"
    refused = lab.submit([here("a")])[here("a").key]
    assert (refused.state, refused.cause) == (State.REFUSED, Cause.NO_NODE)
    fake.refuse = ""
    assert lab.submit([here("a"), here("b", needs=Needs())])[here("b", needs=Needs()).key].state is State.QUEUED
    assert lab.poll([here("a").key])[here("a").key].state is State.REFUSED


def test_a_controller_that_does_not_answer_is_no_word_on_the_jobs(slurm):
    fake = Fake()
    lab, one = slurm(fake), here("a")
    fake.silent = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    with pytest.raises(MissingError, match="lab: Slurm does not answer"):
        lab.submit([one])
    fake.silent = "sbatch: error: Batch job submission failed: Protocol authentication error"
    with pytest.raises(MissingError, match="is the clock of this machine right"):
        lab.submit([one])
    fake.silent = ""
    assert lab.submit([one])[one.key].state is State.QUEUED
    fake.silent, fake.now = "slurm_load_jobs error: Unable to contact slurm controller", 10
    with pytest.raises(MissingError):
        lab.poll([one.key])
    (lab._files.job(one.key) / shell.END).write_text("crash\nit died\n")
    fake.silent, fake.lines = "", [line(1, 0, "RUNNING")]
    lab.poll([one.key])
    fake.silent, fake.now = "slurm_load_jobs error: Unable to contact slurm controller", 100
    assert lab.poll([one.key])[one.key].state is State.FAILED  # its files say so all the same


def test_only_nodes_that_there_are_can_be_avoided(slurm, tmp_path):
    lab = slurm(Fake())
    lab.submit([here("a", avoid=frozenset({"n1", "gone"}))])
    (script,) = tmp_path.glob("shared/batches/*/script.sh")
    assert "#SBATCH --exclude=n1\n" in script.read_text()


def test_a_dry_run_says_everything_and_asks_nothing(slurm):
    fake = Fake()
    text = "\n".join(slurm(fake).rehearse([here("a"), here("b")]))
    assert fake.asked == []
    assert text.count("#SBATCH --array=0-1") == 1
    assert text.count("-m pytest") == 2
    assert "sbatch --parsable " in text.splitlines()[-1]


def test_a_shared_folder_that_is_not_there_is_missing(tmp_path):
    lab = Slurm("lab", bare(folder=str(tmp_path / "no/such")), tmp_path, Fake())
    with pytest.raises(MissingError, match=r"lab: the shared folder .*/no/such cannot be used: No such file"):
        lab.submit([here("a")])
