"""The scripts of arrays and jobs; those of jobs are run as a node would."""

from __future__ import annotations

import subprocess

import pytest
from slurm_samples import DIGEST, job, settings

from knowngood.core.errors import KnowngoodError
from knowngood.executors import job_script, slurm_script
from knowngood.executors.job import FailureCause, JobNeeds, JobSubject


def options(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_the_script_of_an_array():
    batch = [job("a"), job("b")]
    name = slurm_script.array_name(batch)
    text = slurm_script.render_array_script(batch, settings(), ["n2", "n1"])
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


def test_the_settings_of_a_site_are_in_the_script():
    site = settings(
        partition="gpu",
        account="ml",
        qos="night",
        gres={"sm_90": "gpu:h100"},
        options=["--reservation=x", "--time=5"],
        **{"at-once": 4},
    )
    lines = options(slurm_script.render_array_script([job("a"), job("b")], site))
    assert "--array=0-1%4" in lines
    assert {"--partition=gpu", "--account=ml", "--qos=night", "--gres=gpu:h100:1"} <= set(lines)
    assert not any(one.startswith("--constraint") for one in lines)  # the type says it
    assert lines[-2:] == ["--reservation=x", "--time=5"]
    lines = options(slurm_script.render_array_script([job()], settings(constraint={"sm_90": "hopper"})))
    assert "--constraint=hopper" in lines
    lines = options(slurm_script.render_array_script([job(needs=JobNeeds())], settings()))
    assert not any(one.startswith(("--gres", "--constraint")) for one in lines)


def test_jobs_with_the_same_needs_are_one_array():
    many = [job(f"c{number}") for number in range(200)]
    assert [len(batch) for batch in slurm_script.slurm_batches(many)] == [200]
    assert [len(batch) for batch in slurm_script.slurm_batches([job(f"c{number}") for number in range(1500)])] == [
        1000,
        500,
    ]
    apart = [job("a"), job("b", needs=JobNeeds()), job("c", avoid=frozenset({"n1"}))]
    assert len(slurm_script.slurm_batches(apart)) == 3
    assert slurm_script.array_name(many) == slurm_script.array_name(many)
    assert slurm_script.array_name(many) != slurm_script.array_name(many[1:])


def made(one, site):
    way = slurm_script.suite_launch(one, site, "/shared/suite")
    return job_script.render_job_script(one, "/shared/jobs/k", way)


def test_apptainer_and_pyxis_get_the_image_by_its_digest():
    text = made(job(), settings(prepare="module load apptainer"))
    file = f"/shared/knowngood/images/{'0' * 64}.sif"
    assert f'apptainer pull {file}."$mine" docker://registry.example/team/knowngood@{DIGEST}' in text
    assert f'&& mv -f {file}."$mine" {file}; }} || finish image-pull' in text
    assert "apptainer exec --nv --cleanenv --contain" in text
    command = "python -m pytest /mnt/smoke_tests -q --quick --report /mnt/report.json"
    assert f"{file} timeout --kill-after=10 1200 {command}" in text
    assert 'cp -R /shared/suite "$work/smoke_tests" || finish crash' in text
    assert text.index("module load apptainer") < text.index("apptainer pull")
    assert '--bind "$work:/mnt,$work/cache:/cache"' in text  # the image compiles into /cache
    assert text.index('mkdir "$work/cache"') < text.index("apptainer exec")
    assert "--nv" not in made(job(needs=JobNeeds()), settings())
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
        one = job(subject=JobSubject(environment=str(environment), content=DIGEST), needs=JobNeeds(seconds=seconds))
        folder = tmp_path / "job"
        folder.mkdir(exist_ok=True)
        (folder / job_script.PREDICTIONS_FILE).write_text("{}")
        (tmp_path / "suite").mkdir(exist_ok=True)
        suite = str(tmp_path / "suite")
        way = job_script.SuiteLaunch(name=job_script.BARE, python=str(python), suite=suite, folder='"$work"')
        (folder / job_script.SCRIPT_FILE).write_text(job_script.render_job_script(one, str(folder), way))
        done = subprocess.run(
            ["sh", str(folder / job_script.SCRIPT_FILE)],
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
    outcome = job_script.parse_outcome((folder / job_script.OUTCOME_FILE).read_bytes(), one.key)
    assert (code, outcome.node["name"], outcome.node["runtime"]) == (0, "n7", "environment")
    assert outcome.report["verdict"]["ok"]
    assert not (folder / job_script.FAILURE_FILE).exists()
    with pytest.raises(KnowngoodError, match="the result in its folder belongs to job"):
        job_script.parse_outcome((folder / job_script.OUTCOME_FILE).read_bytes(), "another")
    whole = (folder / job_script.OUTCOME_FILE).read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 2):
        with pytest.raises(KnowngoodError, match="incomplete or damaged"):
            job_script.parse_outcome(whole[:size], one.key)
    node("exit 1")  # begun again by Slurm: the result that there is stays
    assert (folder / job_script.OUTCOME_FILE).read_bytes() == whole


@pytest.mark.parametrize(
    ("body", "cause", "text"),
    [
        ("exit 139", FailureCause.CRASH, "the suite's process ended with 139"),
        ("exit 0", FailureCause.CRASH, "the suite ended with 0 and left no report"),
        ("exit 137", FailureCause.MEMORY, "the suite was killed after"),
        ("sleep 20", FailureCause.TIME_LIMIT, "the suite did not end within 1 s"),
    ],
)
def test_a_script_reports_why_there_is_no_outcome(node, body, cause, text):
    _, folder, code = node(body, seconds=1)
    end = job_script.parse_failure((folder / job_script.FAILURE_FILE).read_text())
    assert (code, end.cause) == (1, cause)
    assert text in end.text
    assert not (folder / job_script.OUTCOME_FILE).exists()
    assert job_script.parse_failure("crash\nhalf a sen") is None
