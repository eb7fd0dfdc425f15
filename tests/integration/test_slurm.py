"""The Slurm executor on a real Slurm: a controller, three nodes, GPUs that are files (`slurm_cluster`).

The suite of these jobs is a stand-in that says what it is told, so that engines' faults can be had at will; one test
runs the real one.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import slurm_cluster
from slurm_cluster import until

from knowngood.core.errors import MissingError
from knowngood.evidence import run_evidence
from knowngood.executors import fleet_config, slurm_commands
from knowngood.executors.job import FailureCause, JobNeeds, JobState, JobSubject, SuiteJob
from knowngood.executors.job_run import FleetState, JobRun
from knowngood.executors.job_verdict import VerdictKind
from knowngood.executors.slurm_executor import SlurmExecutor

pytestmark = pytest.mark.integration
SUITE = "5" * 64
APART = {"partition": "apart"}
# Stands where an environment's Python would. What it is to do follows from its arguments and the environment's folder.
STAND_IN = """\
#!/bin/sh
report= ok=true domain=none
while [ $# -gt 0 ]; do
    case $1 in
        --report) report=$2; shift ;;
        --sleep) sleep "$2"; shift ;;
        --red) ok=false domain=image ;;
        --red-on) [ "$SLURMD_NODENAME" = "$2" ] && ok=false domain=image; shift ;;
        --crash) echo "Segmentation fault"; exit 139 ;;
    esac
    shift
done
printf '{"schema": "x", "suite_hash": "%s", "environment": {"sm": null}, "checks": [], ' SUITE > "$report"
printf '"verdict": {"ok": %s, "domain": "%s", "text": "seen on %s"}}' $ok $domain "$SLURMD_NODENAME" >> "$report"
$ok
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        python = cluster.folder / "environment/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(STAND_IN.replace("SUITE", SUITE))
        python.chmod(0o755)
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def late(cluster, tmp_path_factory):
    """A job that is over Slurm's own time limit, when all else is done."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("late")
        site = Site(cluster, folder, folder)
        job = site.job("late", "--sleep", "300", seconds=300)
        site.executor(**APART, options=["--time=1"]).submit([job])
    return job


@pytest.fixture
def site(cluster, tmp_path, monkeypatch):
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    cluster.resume()
    suite = tmp_path / "smoke_tests"
    suite.mkdir()
    return Site(cluster, tmp_path, suite)


class Site:
    """An executor for the cluster, and what runs of it leave."""

    def __init__(self, cluster, folder, suite):
        self.cluster, self.folder, self.suite = cluster, folder, suite
        self.asked = Counter()
        self.messages = []

    def executor(self, **settings):
        given = {"engine": "slurm", "folder": str(self.cluster.shared), "run": "environment"}
        given |= {"environments": f"{self.cluster.folder}/environment/{{cell}}"}
        return SlurmExecutor("lab", fleet_config.SlurmSection(**given | settings), self._command)

    def _command(self, words):
        self.asked[words[0]] += 1
        return slurm_commands.run_slurm_command(words)

    def job(self, cell, *command, **needs):
        needs = {"cpus": 1, "memory": 10 << 20, "seconds": 120} | needs
        return SuiteJob(
            cell=cell,
            subject=JobSubject(environment=f"{self.cluster.folder}/environment", content=f"sha256:{cell}"),
            suite=SUITE,
            suite_folder=self.suite,
            command=command,
            predictions={},
            needs=JobNeeds(**needs),
        )

    def run(self, jobs, executor=None, wait=180.0):
        made = JobRun(
            executor=executor or self.executor(),
            state=FleetState(self.folder / "state"),
            store=lambda run: str(run_evidence.store_evidence(run, self.folder / "evidence")),
            notify=self.messages.append,
            wait=wait,
        )
        return {line.job.cell: line for line in made.run_jobs(jobs)}

    def files(self, cell):
        return sorted((self.folder / "evidence" / cell).glob("*.json"))


def ends(lines):
    return {cell: line.verdict.kind for cell, line in lines.items()}


def test_each_job_has_its_own_end_and_the_rest_completes(site):
    lines = site.run(
        [
            site.job("good"),
            site.job("red", "--red"),
            site.job("crash", "--crash"),
            site.job("slow", "--sleep", "60", seconds=1),
            site.job("hopper", gpu="sm_90", gpus=1),
            site.job("blackwell", gpu="sm_100", gpus=1),
            site.job("four", gpu="sm_90", gpus=4),
            site.job("huge", memory=1 << 40),
        ]
    )
    assert ends(lines) == {
        "good": VerdictKind.GOOD,
        "red": VerdictKind.RED,  # both nodes say so
        "crash": VerdictKind.RED,
        "slow": VerdictKind.FAILED,
        "hopper": VerdictKind.GOOD,
        "blackwell": VerdictKind.REFUSED,
        "four": VerdictKind.REFUSED,
        "huge": VerdictKind.REFUSED,
    }
    assert lines["slow"].tries[-1].cause is FailureCause.TIME_LIMIT
    assert {one.node for one in lines["red"].tries} == {"n1", "n2"}
    assert "Segmentation fault" in lines["crash"].verdict.text
    assert lines["hopper"].tries[-1].node == "n1"
    for cell in ("blackwell", "four", "huge"):
        assert lines[cell].tries[-1].cause is FailureCause.NO_NODE
        assert "sbatch refused it: " in lines[cell].verdict.text
    (stored,) = site.files("good")
    run = run_evidence.load_evidence(stored)
    assert run.ok
    assert run.where is run_evidence.RunPlace.BARE
    assert run.node["engine"] == "slurm"
    assert len(site.files("red")) == 2
    assert site.files("crash") == []


def test_what_the_site_does_not_have_is_refused_in_its_words(site):
    (line,) = site.run([site.job("nowhere")], site.executor(partition="nope")).values()
    assert line.verdict.kind is VerdictKind.REFUSED
    assert line.tries[-1].cause is FailureCause.ENGINE
    assert "Invalid partition name specified" in line.verdict.text
    # sbatch takes what a partition's limit forbids, and Slurm would hold it for ever: it is ended.
    (line,) = site.run([site.job("long")], site.executor(partition="short")).values()
    assert line.verdict.kind is VerdictKind.REFUSED
    assert line.tries[-1].cause is FailureCause.ENGINE
    assert "Slurm will not start it: Partition" in line.verdict.text
    assert site.cluster.command("squeue", "--noheader", "--states=PENDING") == ""


def test_an_image_that_cannot_be_pulled_is_not_the_suites_fault(site, monkeypatch):
    """The site's Apptainer is a stand-in that a registry has refused."""
    apptainer = site.folder / "bin/apptainer"
    apptainer.parent.mkdir()
    apptainer.write_text('#!/bin/sh\necho "FATAL: no $1 of $3: unauthorized" >&2\nexit 255\n')
    apptainer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apptainer.parent}:{os.environ['PATH']}")
    job = replace(site.job("pull"), subject=JobSubject(image="r.example/team/k@sha256:12", content="sha256:12"))
    images = {"run": "apptainer", "environments": None, "images": "r.example/team/k"}
    line = site.run([job], site.executor(**images))["pull"]
    assert line.verdict.kind is VerdictKind.FAILED
    assert [one.cause for one in line.tries] == [FailureCause.IMAGE_PULL, FailureCause.IMAGE_PULL]
    assert "FATAL: no pull of docker://r.example/team/k@sha256:12: unauthorized" in line.verdict.text


def test_200_jobs_are_one_submission_and_few_questions(site):
    jobs = [site.job(f"cell{number}") for number in range(200)]
    began = time.monotonic()
    lines = site.run(jobs)
    took = time.monotonic() - began
    assert set(ends(lines).values()) == {VerdictKind.GOOD}
    assert site.asked["sbatch"] == 1
    assert site.asked["squeue"] <= 8 + took / 30
    assert sum(len(site.files(job.cell)) for job in jobs) == 200


def test_a_node_that_is_drained_finishes_what_it_has_and_one_that_goes_down_gives_it_back(site):
    job = site.job("drained", "--sleep", "3")
    lines = _run_while(site, job, "drain")
    assert ends(lines) == {"drained": VerdictKind.GOOD}
    drained = lines["drained"].tries[-1].node
    until("it is drained", lambda: site.cluster.nodes()[drained] == "drained")
    lines = site.run([site.job("after")])
    assert lines["after"].tries[-1].node != drained
    site.cluster.resume()

    job = site.job("down", "--sleep", "3")
    lines = _run_while(site, job, "down")
    assert ends(lines) == {"down": VerdictKind.GOOD}
    assert len(site.files("down")) == 1
    assert len(lines["down"].tries) == 1  # Slurm itself began it again


def _run_while(site, job, state):
    """The job runs, and its node is put into a state meanwhile."""
    other = site.executor()
    with ThreadPoolExecutor() as pool:
        lines = pool.submit(site.run, [job])
        until("it runs", lambda: other.poll([job.key])[job.key].state is JobState.RUNNING)
        node = other.poll([job.key])[job.key].node
        site.cluster.command("scontrol", "update", f"nodename={node}", f"state={state}", "reason=test")
        return lines.result()


def test_a_controller_that_is_restarted_is_waited_for(site):
    job = site.job("restart", "--sleep", "6")
    with ThreadPoolExecutor() as pool:
        lines = pool.submit(site.run, [job, site.job("beside")])
        until("it runs", lambda: site.executor().poll([job.key])[job.key].state is JobState.RUNNING)
        site.cluster.stop_controller()
        with pytest.raises(MissingError, match="Slurm does not answer"):
            site.executor().submit([site.job("meanwhile")])
        time.sleep(2)
        site.cluster.start_controller()
        assert ends(lines.result()) == {"restart": VerdictKind.GOOD, "beside": VerdictKind.GOOD}


def test_a_result_is_stored_once_and_a_half_written_one_is_had_again(site):
    job, executor = site.job("once"), site.executor()
    executor.submit([job])
    until("it ended", lambda: executor.poll([job.key])[job.key].state is JobState.ENDED)
    path = site.cluster.shared / "jobs" / job.key / "outcome.json"
    whole = path.read_bytes()
    number = site.cluster.command("squeue", "--noheader", "--states=COMPLETED", "--sort=-i", "--format=%i").split()[0]
    site.cluster.command("scontrol", "requeue", number)  # a second delivery: the script sees that there is one
    assert site.run([job], site.executor())["once"].verdict.kind is VerdictKind.GOOD
    shutil.rmtree(site.folder / "state")
    assert site.run([job], site.executor())["once"].verdict.kind is VerdictKind.GOOD
    assert path.read_bytes() == whole
    assert len(site.files("once")) == 1

    time.sleep(1)  # a run is stored under the second at which it ended
    path.write_bytes(whole[: len(whole) // 2])
    shutil.rmtree(site.folder / "state")
    line = site.run([job], site.executor())["once"]
    assert line.verdict.kind is VerdictKind.GOOD
    assert "incomplete or damaged" in line.tries[0].text
    assert [one.attempt for one in line.tries] == [1, 2]
    assert len(site.files("once")) == 2


def test_a_cancelled_job_is_told(site):
    executor, job = site.executor(), site.job("stopped", "--sleep", "100")
    executor.submit([job])
    until("it runs", lambda: executor.poll([job.key])[job.key].state is JobState.RUNNING)
    executor.cancel([job.key])
    until("it is cancelled", lambda: executor.poll([job.key])[job.key].state is JobState.CANCELLED)


def test_a_red_suite_is_confirmed_elsewhere_and_a_node_that_fails_what_others_pass_is_avoided(site):
    lines = site.run([site.job("a", "--red-on", "n1", cpus=16), site.job("b", "--red-on", "n1", cpus=16)])
    assert ends(lines) == {"a": VerdictKind.GOOD, "b": VerdictKind.GOOD}
    state = FleetState(site.folder / "state")
    assert list(state.ledger.suspects()) == ["n1"]
    assert "passed on n2" in state.ledger.suspects()["n1"]
    lines = site.run([site.job("c", "--red-on", "n1")])
    assert [one.node for one in lines["c"].tries] == ["n2"]
    # n1 alone has this GPU, and is avoided: that is no verdict on the image.
    lines = site.run([site.job("d", gpu="sm_90", gpus=1)])
    assert ends(lines) == {"d": VerdictKind.REFUSED}
    (site.folder / "state/nodes.json").unlink()
    lines = site.run([site.job("e", "--red", gpu="sm_90", gpus=1)])
    assert ends(lines) == {"e": VerdictKind.UNCONFIRMED}
    assert "not confirmed on another node: sbatch refused it" in lines["e"].verdict.text


def test_the_real_suite_in_the_cells_image_and_a_program_that_is_killed(site, project, engine):
    """The environment's Python is the image's, in a container on the node: torch, transformers and the real suite."""
    (cell,) = project.matrix.aliases["default"].split()
    client = [*engine.docker, "image", "inspect", f"knowngood:{cell}"]
    if subprocess.run(client, env=engine.environment(), capture_output=True, check=False).returncode:
        pytest.skip(f"the engine has no image of {cell}; `knowngood build-matrix` makes it, as CI does first")
    python = site.folder / "environments" / cell / "bin/python"
    python.parent.mkdir(parents=True)
    docker = " ".join(f"{name}='{value}'" for name, value in engine.env.items()) + " " + shlex.join(engine.docker)
    mounts = f'--volume "$HOME:$HOME" --volume {site.cluster.shared}:{site.cluster.shared}:ro'
    limits = "--user 0 --network none --shm-size 1g --env HOME --env HF_HUB_OFFLINE"
    python.write_text(f'#!/bin/sh\n{docker} run --rm --init {limits} {mounts} knowngood:{cell} python "$@"\n')
    python.chmod(0o755)
    (project.root / "fleet.yaml").write_text(
        f"schema: 1\nexecutors:\n  lab:\n    engine: slurm\n    folder: {site.cluster.shared}\n"
        f"    run: environment\n    environments: {site.folder}/environments/{{cell}}\n"
    )
    words = [sys.executable, "-m", "knowngood", "smoke", cell, "--on", "lab", "--quick", "--json"]
    environment = {**os.environ, "KNOWNGOOD_CACHE": str(site.folder / "cache")}

    def arrays():
        return set(site.cluster.command("squeue", "--noheader", "--states=all", "--format=%F").split())

    before = arrays()
    first = subprocess.Popen(words, cwd=project.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until("it is handed in", lambda: arrays() - before)
    finally:
        first.kill()
        first.communicate()
    done = subprocess.run(words, cwd=project.root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (told,) = json.loads(done.stdout)["cells"]
    assert told["outcome"] == "good"
    assert len(arrays() - before) == 1
    run = run_evidence.load_evidence(project.root / told["tries"][0]["evidence"])
    assert run.ok
    assert "pass" in run.outcomes.values()
    again = subprocess.run(words, cwd=project.root, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert [one["outcome"] for one in json.loads(again.stdout)["cells"]] == ["proven"]
    assert len(arrays() - before) == 1


def test_slurms_own_time_limit_is_told(site, late):
    """The script's own limit comes first, unless Slurm's was made shorter: it took a minute, beside the tests above."""
    executor = site.executor(**APART)
    until("it is ended", lambda: executor.poll([late.key])[late.key].state.is_final, seconds=150)
    status = executor.poll([late.key])[late.key]
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.TIME_LIMIT)
    assert "TIMEOUT" in status.text
