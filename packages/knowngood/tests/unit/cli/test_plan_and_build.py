"""`plan` shows what `build` does: the same cells, in the same order, with the same options."""

from __future__ import annotations

import json

import pytest

from knowngood.base import base_image
from knowngood.cli import build, build_matrix, main
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.engine import container_engine
from knowngood.engine.container_engine import Engine
from knowngood.images import dry_run
from samples import FA0, FA2, FA4

ENGINE = Engine(
    host="unix:///nowhere",
    docker=("docker",),
    version="",
    buildkit="",
    containerd_store=True,
    embedded=False,
    network="host",
)


@pytest.fixture
def ask(home, lock_of, monkeypatch, capsys):
    """A function that runs a command on a project with three locked cells, and returns its exit code and document."""
    for name in (FA4, FA2, FA0):
        lock_of(name)
    for module in (build, build_matrix):
        monkeypatch.setattr(module, "split_broken_cells", lambda _project, cells: (list(cells), {}))
    monkeypatch.setattr(container_engine, "find_running_engine", lambda: None)
    monkeypatch.setattr(base_image, "read_base_digest", lambda *_: "sha256:" + "b" * 64)
    monkeypatch.setattr(base_image, "expected_base_context", lambda *_: "oci-layout:///base@sha256:" + "b" * 64)
    monkeypatch.setattr(base_image, "find_cached_digest", lambda *_: None)
    monkeypatch.setattr(dry_run, "dry_run_engine", lambda: ENGINE)
    assert home

    def call(*words):
        code = main.main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def planned_cells(document):
    return [cell["cell"] for cell in document["cells"]]


def commented_cells(document):
    lines = [line.removeprefix("# ") for line in document["commands"] if line.startswith("# sm90-")]
    return [line for line in lines if ":" not in line and " " not in line]


@pytest.mark.parametrize("words", [["*"], [FA2, FA4], [FA4], ["transformers=4.57.6"]])
def test_plan_and_build_have_the_same_cells_in_the_same_order(ask, words):
    _, shown = ask("build", "--plan", *words)
    code, built = ask("build", "--dry-run", *words)
    assert code == 0
    assert planned_cells(shown) == commented_cells(built)


def test_a_cell_without_its_wheel_is_planned_as_its_twin(ask):
    assert len(planned_cells(ask("build", "--plan", "*")[1])) == 2


def test_a_dry_run_with_a_broken_cell_fails_as_the_plan_does_and_builds_nothing(ask, monkeypatch):
    def split(_project, cells):
        return list(cells)[1:], {str(cells[0]): KnowngoodError(f"{cells[0]} is broken")}

    def fail(**_more):
        raise AssertionError("a dry run asks for no engine")

    for module in (build, build_matrix):
        monkeypatch.setattr(module, "split_broken_cells", split)
    monkeypatch.setattr(build_matrix.container_engine, "ensure_engine", fail)
    shown, built = ask("build", "--plan", "*"), ask("build", "--dry-run", "*")
    assert shown == built
    assert (built[0], built[1]["error"]) == (1, f"{FA4} is broken")


def test_a_damaged_lock_is_refused_by_the_plan_as_by_the_build(ask, home):
    lock = home.tree.cell_folder(parse_cell(FA4)) / "cell.json"
    lock.write_text(lock.read_text().replace('"lock": "', '"lock": "0'))
    code, shown = ask("build", "--plan", FA4)
    assert code == 2
    assert [(cell["cell"], cell["action"]) for cell in shown["cells"]] == [(FA4, "refused")]
    assert "cell.json" in shown["cells"][0]["note"]
    assert ask("build", "--dry-run", FA4)[0] == 2
