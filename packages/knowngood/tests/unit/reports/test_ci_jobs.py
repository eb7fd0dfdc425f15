from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from knowngood.cli import main
from knowngood.core.cell import parse_cell
from knowngood.core.errors import UsageError
from knowngood.images.matrix_plan import PlanInput
from knowngood.lock.cell_lock import split_into_layers
from knowngood.reports import ci_jobs
from knowngood.reports.ci_jobs import CiStage, plan_ci_jobs

BASE = parse_cell(samples.FA2)


def cells(number: int, *, flash_attn: bool = True) -> list[PlanInput]:
    """Cells that differ in torch, GPU and transformers; every fifth torch has a wheel of its own."""
    made = []
    for index in range(number):
        gpu = ("sm_80", "sm_90", "sm_100")[index % 3]
        cell = dataclasses.replace(
            BASE,
            gpu=gpu,
            torch=f"2.{index // 60}.0",
            transformers=f"4.{index % 60}.0",
            flash_attn="2.8.3" if flash_attn and index % 5 == 0 else "0",
        )
        made.append(PlanInput(cell=str(cell)))
    return made


def pins(wanted: list[PlanInput]) -> dict[str, list[tuple[str, str]]]:
    """What each cell has that no index has: flash-attn, and every tenth torch another package besides."""
    found = {}
    for item in wanted:
        cell = parse_cell(item.cell)
        own = [("flash-attn", cell.flash_attn)] if cell.flash_attn != "0" else []
        further = [("engine", "1.0")] if own and cell.transformers.endswith("0.0") else []
        found[item.cell] = [*own, *further]
    return found


def planned(wanted, *, gpus=()):
    return plan_ci_jobs(wanted, pins(wanted), gpus=gpus)


def of(made, stage):
    return [job for job in made if job.stage is stage]


@settings(max_examples=40, deadline=None)
@given(number=st.integers(0, 200), gpus=st.sets(st.sampled_from(["sm_80", "sm_90", "sm_120"])))
def test_every_cell_is_in_one_job_on_its_runner(number, gpus):
    wanted = cells(number)
    made = planned(wanted, gpus=gpus)
    images = of(made, CiStage.IMAGES)
    assert sorted(name for job in images for name in job.cells) == sorted(item.cell for item in wanted)
    assert len({job.name for job in made}) == len(made)
    wheels = {job.name: job for job in of(made, CiStage.WHEELS)}
    for job in images:
        kinds = {parse_cell(name).gpu if parse_cell(name).gpu in gpus else None for name in job.cells}
        assert kinds == {job.gpu}
        compiled = [name for name in job.cells if parse_cell(name).flash_attn != "0"]
        assert all(any(name in wheels[need].cells for need in job.needs) for name in compiled)
        assert bool(compiled) == bool(job.needs)


def test_jobs_are_in_the_order_of_the_plan():
    wanted = cells(30, flash_attn=False)[::-1]
    made = of(planned(wanted), CiStage.IMAGES)
    assert [job.cells for job in made] == [(item.cell,) for item in wanted]


def test_a_wheel_is_compiled_once_for_all_cells_that_need_it():
    old, new = (dataclasses.replace(BASE, transformers=version) for version in ("4.57.6", "5.17.0"))
    other = dataclasses.replace(BASE, gpu="sm_80")
    made = planned([PlanInput(cell=str(cell)) for cell in (old, new, other)])
    assert [job.cells for job in of(made, CiStage.WHEELS)] == [(str(old), str(new)), (str(other),)]


def test_wheels_that_a_cell_has_together_are_one_job_and_no_wheel_is_in_two():
    made = [dataclasses.replace(BASE, transformers=f"4.{n}.0", flash_attn=v) for n, v in enumerate(("2.7.4", "2.8.3"))]
    wanted = [PlanInput(cell=str(cell)) for cell in (*made, dataclasses.replace(BASE, gpu="sm_80"))]
    first, second, third = (item.cell for item in wanted)
    apart = {first: [("a", "1")], second: [("b", "1")], third: [("a", "1")]}
    assert [job.cells for job in plan_ci_jobs(wanted, apart, gpus=())][:3] == [(first,), (second,), (third,)]
    joined = {**apart, third: []}
    joined[second] = [("b", "1"), ("a", "1")]
    wheels = of(plan_ci_jobs(wanted, joined, gpus=()), CiStage.WHEELS)
    assert [job.cells for job in wheels] == [(first, second)]


def test_the_key_of_a_wheel_job_follows_from_the_lock():
    def key(version):
        layers = split_into_layers([samples.distribution("flash-attn", version)], {"python": "*"})
        return planned([PlanInput(cell=samples.FA2, layers=layers)])[0].key

    assert key("2.8.3.post2+a") == key("2.8.3.post2+a") != key("2.8.3.post2+b")


def test_without_cells_there_are_no_jobs():
    assert planned([]) == ()
    assert ci_jobs.github_matrix((), CiStage.IMAGES) == {"include": []}


def test_more_jobs_than_a_workflow_may_have_are_refused():
    with pytest.raises(UsageError, match="257 jobs are needed, and a workflow may have 256; select fewer cells"):
        planned(cells(257, flash_attn=False))


GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def locked(home, lock_of):
    for identity in (samples.FA4, samples.FA2, samples.FA0):
        lock_of(identity)
    folder = home.tree.folder / "bases" / "debian12"
    folder.mkdir(parents=True)
    (folder / "packages.lock").write_bytes((samples.ROOT / "docker/bases/debian12/packages.lock").read_bytes())
    return home


def plan(capsys, *words):
    code = main.main([*words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


CASES = {
    "github.json": ["images", "--gpus", "sm_90"],
    "github-wheels.json": ["wheels", "--runner", "self-hosted,build"],
}


@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize("name", CASES)
def test_the_plan_equals_its_golden_file(name, capsys):
    text = plan(capsys, "cells", "--jobs", *CASES[name])
    if os.environ.get("KNOWNGOOD_GOLDEN") == "write":
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


@pytest.mark.usefixtures("locked")
def test_a_github_matrix_is_one_line_and_knows_its_runners(capsys):
    text = plan(capsys, "cells", "--jobs", "images", "--gpus", "sm_90", samples.FA2)
    assert text.count("\n") == 1
    (item,) = json.loads(text)["include"]
    assert item["runner"] == ["self-hosted", "gpu", "sm_90"]
    assert item["options"] == "--gpus --no-quick"
    (elsewhere,) = json.loads(plan(capsys, "cells", "--jobs", "images", "--gpus", "sm_100", samples.FA2))["include"]
    assert elsewhere["runner"] == ["ubuntu-24.04"]
    assert elsewhere["options"] == ""


@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runner", "build"], "--runner belongs to --jobs"),
        (["--gpus", "sm_90"], "--gpus belongs to --jobs"),
        (["--changed-since", "main"], "--changed-since belongs to --jobs"),
        (["--jobs", "images", "--size"], "--size does nothing with --jobs"),
        (["--jobs", "images", "--gpus", "H100"], "'H100' is not a GPU architecture"),
        (["--jobs", "images", "--runner", "a b;c"], "does not name runners"),
        (["--jobs", "images", "--runner", "$(id)"], "does not name runners"),
    ],
)
def test_wrong_options_are_refused(words, said, capsys):
    assert main.main(["cells", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("locked")
def test_the_plan_for_people_counts_layers(capsys):
    assert "layers to build" in plan(capsys, "build", "--plan")
