"""Cells as jobs, cells that need none, and the executor of a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from knowngood.cli import main
from knowngood.core.errors import MissingError
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.executors import executor_choice, fleet_config, job_requests
from knowngood.executors.job_requests import request_jobs
from knowngood.facts import fact_store
from knowngood.facts.driver_reader import DriverFacts
from knowngood.project.checkout import Project
from knowngood.smoke import suite_command
from knowngood.smoke.suite_files import hash_suite
from knowngood.smoke.trainer_suite import find_cell_suite

ROOT = Path(__file__).resolve().parents[3]
BARE = fleet_config.LocalSection(engine="local", environments="/e/{cell}")


def recorded(digest):
    """A record, as far as a job needs one."""
    return SimpleNamespace(manifest=SimpleNamespace(digest=digest), config=SimpleNamespace(digest="sha256:cf"))


RECORD = recorded("sha256:12")
IMAGES = fleet_config.SlurmSection(engine="slurm", folder="/s", run="apptainer", images="r.example/team/k", cpus=4)


@pytest.fixture
def here(tmp_path):
    class Mine(Project):
        evidence = tmp_path / "evidence"

    return Mine(ROOT)


@pytest.fixture
def cell(here):
    default = here.matrix.aliases["default"]
    return next(cell for cell in here.matrix.cells if str(cell) == default)


def run_of(here, cell, **changes):
    versions = {item.name: item.version for item in here.tree.load(cell).distributions}
    report = {
        "verdict": {"ok": True, "domain": "none", "text": "t"},
        "suite_hash": hash_suite(here.suite),
        "checks": [],
        "environment": {"sm": None, "distributions": versions},
    }
    made = Evidence(
        cell=str(cell),
        where=RunPlace.BARE,
        image=None,
        when="2026-11-21T10:00:00+00:00",
        node={},
        command=(),
        report=report,
    )
    return replace(made, **changes)


def test_a_job_has_the_digest_of_its_image_and_needs_a_gpu(here, cell, monkeypatch):
    monkeypatch.setattr(job_requests.image_release, "current_record", lambda *_: RECORD)
    options = suite_command.SuiteOptions(gpus=True, quick=True, memory="9g", seconds=60)
    (job,) = request_jobs(here, [cell], IMAGES, options, again=False).jobs
    assert job.subject.image == "r.example/team/k@sha256:12"
    assert (job.subject.content, job.subject.config) == ("sha256:12", "sha256:cf")
    assert job.command == ("-q", "-p", "no:cacheprovider", "--quick", "--demand-gpu", "--cell-gpu", cell.gpu)
    assert (job.needs.gpu, job.needs.gpus, job.needs.cpus) == (cell.gpu, 1, 4)
    assert (job.needs.memory, job.needs.seconds) == (9 << 30, 60)
    assert job.needs.driver == fact_store.load_facts("drivers", DriverFacts)[cell.cuda].facts.minimum
    assert job.suite == hash_suite(here.suite)


def test_a_cell_with_a_trainer_runs_the_suite_that_has_its_checks(here, monkeypatch):
    monkeypatch.setattr(job_requests.image_release, "current_record", lambda *_: RECORD)
    cells = here.matrix.select_cells(["default", "stack=trl,gpu=sm_90"])
    plain, trainer = request_jobs(here, cells, IMAGES, suite_command.SuiteOptions(), again=True).jobs
    assert (plain.suite_folder, plain.suite) == (here.suite, hash_suite(here.suite))
    assert trainer.suite_folder == find_cell_suite(here, cells[1])
    assert trainer.suite == hash_suite(trainer.suite_folder) != plain.suite
    assert (trainer.suite_folder / "trainers/trl_sft.py").is_file()


def test_a_cell_without_an_image_is_refused_and_the_others_are_not(here, cell, monkeypatch):
    others = [one for one in here.matrix.cells if one != cell][:1]
    records = {cell: None}
    monkeypatch.setattr(job_requests.image_release, "current_record", lambda _, one, __: records.get(one, RECORD))
    requests = request_jobs(here, [cell, *others], IMAGES, suite_command.SuiteOptions(), again=False)
    assert [job.cell for job in requests.jobs] == [str(others[0])]
    assert isinstance(requests.refused[str(cell)], MissingError)
    assert "there is no record of an image of the committed files" in str(requests.refused[str(cell)])


def test_a_proven_cell_is_not_run_again(here, cell):
    def proven(run, *, again=False, **options):
        for path in here.evidence.glob("*/*.json"):
            path.unlink()
        run_evidence.store_evidence(run, here.evidence)
        return list(request_jobs(here, [cell], BARE, suite_command.SuiteOptions(**options), again=again).proven) == [
            str(cell)
        ]

    good = run_of(here, cell)
    assert proven(good)
    assert not proven(good, again=True)
    assert not proven(good, gpus=True)
    assert not proven(replace(good, where=RunPlace.CONTAINER_CPU, image="sha256:12"))
    quick = replace(good, command=("--quick",))
    assert proven(quick, quick=True)
    assert not proven(quick)
    versions = dict(good.report["environment"]["distributions"]) | {"torch": "1.0"}
    assert not proven(replace(good, report={**good.report, "environment": {"sm": None, "distributions": versions}}))
    assert not proven(replace(good, report={**good.report, "suite_hash": "0" * 64}))
    red = {"ok": False, "domain": "image", "text": "t"}
    assert not proven(replace(good, report={**good.report, "verdict": red}))


def test_an_image_is_proven_by_its_digest(here, cell, monkeypatch):
    monkeypatch.setattr(job_requests.image_release, "current_record", lambda *_: RECORD)
    run = run_of(here, cell, where=RunPlace.CONTAINER_GPU, image="sha256:12")
    run_evidence.store_evidence(run, here.evidence)
    assert request_jobs(here, [cell], IMAGES, suite_command.SuiteOptions(gpus=True), again=False).proven
    monkeypatch.setattr(job_requests.image_release, "current_record", lambda *_: recorded("sha256:34"))
    assert not request_jobs(here, [cell], IMAGES, suite_command.SuiteOptions(gpus=True), again=False).proven


def test_the_executors_of_a_file(tmp_path, monkeypatch):
    here = Project(tmp_path)
    assert executor_choice.find_executor("local", here, print)[0].name == "local"
    (tmp_path / "fleet.yaml").write_text(
        "schema: 1\nexecutors:\n  lab: {engine: slurm, folder: /s, run: pyxis, images: r.example/k}\n"
        "  prod: {engine: kubernetes, images: r.example/k, namespace: smoke}\n"
    )
    assert executor_choice.find_executor("lab", here, print)[0].name == "lab"
    prod = executor_choice.find_executor("prod", here, print)[0]
    assert (prod.name, prod.section.namespace) == ("prod", "smoke")
    monkeypatch.setenv("KNOWNGOOD_FLEET", str(tmp_path / "other.yaml"))
    (tmp_path / "other.yaml").write_text("schema: 1\nexecutors: {x: {engine: local}}\n")
    assert executor_choice.find_executor("x", here, print)[0].name == "x"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cancel"], "name it with --on NAME"),
        (["--on", "local", "--here", "x"], "--here and --on are different places"),
        (["--image", "x.example/y:z", "--on", "local"], "--on and --image are different places"),
        (["--on", "nowhere"], "there are local"),
    ],
)
def test_wrong_usage(words, message, capsys, monkeypatch):
    monkeypatch.delenv("KNOWNGOOD_FLEET", raising=False)
    assert main.main(["smoke", "default", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_prints_the_scripts_and_commands(tmp_path, capsys, monkeypatch):
    (tmp_path / "fleet.yaml").write_text(
        "schema: 1\nexecutors:\n"
        "  lab: {engine: slurm, folder: /no/such, run: environment, environments: '/e/{cell}', partition: gpu}\n"
    )
    monkeypatch.setenv("KNOWNGOOD_FLEET", str(tmp_path / "fleet.yaml"))
    assert main.main(["smoke", "default", "--on", "lab", "--gpus", "--again", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "#SBATCH --partition=gpu\n" in out
    assert "--demand-gpu --cell-gpu sm_90" in out
    assert out.splitlines()[-1].startswith("sbatch --parsable /no/such/batches/knowngood-")
