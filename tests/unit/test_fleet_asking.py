"""Cells as jobs, and which cells need none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from knowngood import cli, evidence, facts, smoke
from knowngood.errors import MissingError
from knowngood.evidence import Evidence, Where
from knowngood.fleet import asking, config, engines
from knowngood.fleet.asking import ask, suite_hash
from knowngood.project import Project

ROOT = Path(__file__).resolve().parents[2]
BARE = config.Local(engine="local", environments="/e/{cell}")


def recorded(digest):
    """A record, as far as a job needs one."""
    return SimpleNamespace(manifest=SimpleNamespace(digest=digest), config=SimpleNamespace(digest="sha256:cf"))


RECORD = recorded("sha256:12")
IMAGES = config.Slurm(engine="slurm", folder="/s", run="apptainer", images="r.example/team/k", cpus=4)


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
        "suite_hash": suite_hash(here.suite),
        "checks": [],
        "environment": {"sm": None, "distributions": versions},
    }
    made = Evidence(
        cell=str(cell),
        where=Where.BARE,
        image=None,
        when="2026-11-21T10:00:00+00:00",
        node={},
        command=(),
        report=report,
    )
    return replace(made, **changes)


def test_a_job_of_an_image_names_it_by_digest_and_asks_for_a_gpu(here, cell, monkeypatch):
    monkeypatch.setattr(asking.release, "record", lambda *_: RECORD)
    options = smoke.Options(gpus=True, quick=True, memory="9g", seconds=60)
    (job,) = ask(here, [cell], IMAGES, options, again=False).jobs
    assert job.subject.image == "r.example/team/k@sha256:12"
    assert (job.subject.content, job.subject.config) == ("sha256:12", "sha256:cf")
    assert job.command == ("-q", "-p", "no:cacheprovider", "--quick", "--demand-gpu", "--cell-gpu", cell.gpu)
    assert (job.needs.gpu, job.needs.gpus, job.needs.cpus) == (cell.gpu, 1, 4)
    assert (job.needs.memory, job.needs.seconds) == (9 << 30, 60)
    assert job.needs.driver == facts.load("drivers")[cell.cuda].facts.minimum
    assert job.suite == suite_hash(here.suite)


def test_a_cell_without_an_image_is_refused_and_the_others_are_not(here, cell, monkeypatch):
    others = [one for one in here.matrix.cells if one != cell][:1]
    monkeypatch.setattr(asking.release, "record", lambda _, one, __: None if one == cell else RECORD)
    asked = ask(here, [cell, *others], IMAGES, smoke.Options(), again=False)
    assert [job.cell for job in asked.jobs] == [str(others[0])]
    assert isinstance(asked.refused[str(cell)], MissingError)
    assert "no image of what is committed is known here" in str(asked.refused[str(cell)])


def test_what_is_proven_is_not_run_again(here, cell):
    def proven(run, *, again=False, **options):
        for path in here.evidence.glob("*/*.json"):
            path.unlink()
        evidence.store(run, here.evidence)
        return list(ask(here, [cell], BARE, smoke.Options(**options), again=again).proven) == [str(cell)]

    good = run_of(here, cell)
    assert proven(good)
    assert not proven(good, again=True)
    assert not proven(good, gpus=True)
    assert not proven(replace(good, where=Where.CONTAINER_CPU, image="sha256:12"))
    quick = replace(good, command=("--quick",))
    assert proven(quick, quick=True)
    assert not proven(quick)
    versions = dict(good.report["environment"]["distributions"]) | {"torch": "1.0"}
    assert not proven(replace(good, report={**good.report, "environment": {"sm": None, "distributions": versions}}))
    assert not proven(replace(good, report={**good.report, "suite_hash": "0" * 64}))
    red = {"ok": False, "domain": "image", "text": "t"}
    assert not proven(replace(good, report={**good.report, "verdict": red}))


def test_an_image_is_proven_by_its_digest(here, cell, monkeypatch):
    monkeypatch.setattr(asking.release, "record", lambda *_: RECORD)
    run = run_of(here, cell, where=Where.CONTAINER_GPU, image="sha256:12")
    evidence.store(run, here.evidence)
    assert ask(here, [cell], IMAGES, smoke.Options(gpus=True), again=False).proven
    monkeypatch.setattr(asking.release, "record", lambda *_: recorded("sha256:34"))
    assert not ask(here, [cell], IMAGES, smoke.Options(gpus=True), again=False).proven


def test_the_executors_of_a_file(tmp_path, monkeypatch):
    here = Project(tmp_path)
    assert engines.find("local", here, print).executor.name == "local"
    (tmp_path / "fleet.yaml").write_text(
        "schema: 1\nexecutors:\n  lab: {engine: slurm, folder: /s, run: pyxis, images: r.example/k}\n"
        "  prod: {engine: kubernetes, images: r.example/k, namespace: smoke}\n"
    )
    assert engines.find("lab", here, print).executor.name == "lab"
    prod = engines.find("prod", here, print).executor
    assert (prod.name, prod.settings.namespace) == ("prod", "smoke")
    monkeypatch.setenv("KNOWNGOOD_FLEET", str(tmp_path / "other.yaml"))
    (tmp_path / "other.yaml").write_text("schema: 1\nexecutors: {x: {engine: local}}\n")
    assert engines.find("x", here, print).executor.name == "x"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cancel"], "say which with --on NAME"),
        (["--on", "local", "--here", "x"], "two places"),
        (["--on", "nowhere"], "there are local"),
    ],
)
def test_wrong_usage(words, said, capsys, monkeypatch):
    monkeypatch.delenv("KNOWNGOOD_FLEET", raising=False)
    assert cli.main(["smoke", "default", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_says_what_it_would_do(tmp_path, capsys, monkeypatch):
    (tmp_path / "fleet.yaml").write_text(
        "schema: 1\nexecutors:\n"
        "  lab: {engine: slurm, folder: /no/such, run: environment, environments: '/e/{cell}', partition: gpu}\n"
    )
    monkeypatch.setenv("KNOWNGOOD_FLEET", str(tmp_path / "fleet.yaml"))
    assert cli.main(["smoke", "default", "--on", "lab", "--gpus", "--again", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "#SBATCH --partition=gpu\n" in out
    assert "--demand-gpu --cell-gpu sm_90" in out
    assert out.splitlines()[-1].startswith("sbatch --parsable /no/such/batches/knowngood-")
