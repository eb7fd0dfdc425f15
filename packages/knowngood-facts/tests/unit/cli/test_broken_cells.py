"""Every command that makes something of a cell asks whether the rules allow it."""

from __future__ import annotations

import json
import re

import pytest

from knowngood.cli import main
from knowngood.core import extensions
from knowngood.project.cell_answers import JUDGEMENTS_FILE, judge_cells
from knowngood.registry import image_release, publication
from knowngood.registry.attachments import DocumentList
from knowngood.registry.content_inspection import ImageInspection
from memory_registry import IMAGE
from samples import FA0, FA4, MATRIX

BROKEN = "sm70-cu130-torch2.11.0-tf5.17.0-fa0-triton3.6.0-py311"
VOLTA = (
    MATRIX.replace("gpus:\n", "gpus:\n  sm_70: {family: Volta, cards: [V100]}\n")
    .replace("cells:\n", "cells:\n  - {gpu: sm_70, torch: 2.11.0, transformers: 5.17.0, base: debian12}\n")
    .replace("amendments:\n", "amendments:\n{waiver}")
)
WAIVER = "  - {when: gpu=sm_70, waive: torch-runs-on-gpu, on: 2026-11-22, because: it is compiled here}\n"


@pytest.fixture
def call(capsys):
    def run(*words: str):
        code = main.main([*words, "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return run


@pytest.fixture
def volta(home):
    (home.root / "matrix.yaml").write_text(VOLTA.replace("{waiver}", ""))
    return home


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A registry that has the image of FA0, and that notes which aliases are moved."""
    moved = []
    digest = "sha256:" + "d" * 64
    monkeypatch.setattr(image_release, "recorded_digest", lambda *_: digest)
    state = publication.PublicationState(
        tagged=digest,
        tag_fault=None,
        image=ImageInspection(manifest=IMAGE, faults=()),
        documents=DocumentList(documents=()),
    )
    monkeypatch.setattr(publication, "inspect_publication", lambda *_: state)
    monkeypatch.setattr(publication, "move_alias", lambda _, alias, digest: moved.append((alias, digest)) or True)
    return moved


@pytest.mark.usefixtures("volta")
def test_cells_names_the_broken_cell_and_why(call):
    code, document, _ = call("cells")
    assert code == 1
    errors = {cell["id"]: [error["id"] for error in cell["errors"]] for cell in document["cells"]}
    assert errors[BROKEN] == ["torch-runs-on-gpu"]
    assert errors[FA0] == []


@pytest.mark.parametrize("command", ["build", "build-matrix", "lock"])
def test_a_broken_cell_is_neither_locked_nor_built(volta, call, command):
    code, document, _ = call(command, BROKEN)
    [row] = document["cells"] if isinstance(document, dict) else document
    assert (code, row["status"]) == (1, "failed")
    assert "is broken: torch 2.11.0 has machine code for" in row["error"]
    assert "waive: torch-runs-on-gpu" in row["error"]
    assert not volta.tree.cell_folder(next(iter(volta.matrix.cells))).exists()


@pytest.mark.usefixtures("volta")
@pytest.mark.parametrize("words", [("build", BROKEN, "--plan"), ("export", BROKEN)])
def test_a_broken_cell_is_neither_planned_nor_exported(call, words):
    code, document, _ = call(*words)
    assert code == 1
    assert "[torch-runs-on-gpu]" in document["error"]


@pytest.mark.usefixtures("volta")
def test_a_broken_cell_is_not_published(call):
    code, document, _ = call("publish", BROKEN, "--to", "registry.example/team/images")
    assert (code, document["cells"][0]["status"]) == (1, "failed")
    assert "[torch-runs-on-gpu]" in document["cells"][0]["error"]


def test_a_waived_finding_refuses_nothing(volta, call):
    (volta.root / "matrix.yaml").write_text(VOLTA.replace("{waiver}", WAIVER))
    code, document, _ = call("cells", BROKEN)
    assert (code, document["cells"][0]["errors"]) == (0, [])


@pytest.mark.parametrize("item", ["waive: x", "on: 2026-11-22", "waive: x, on: yesterday"])
def test_a_waiver_has_a_finding_and_a_day(home, call, item):
    waiver = f"  - {{when: gpu=sm_90, {item}, because: y}}\n"
    (home.root / "matrix.yaml").write_text(MATRIX.replace("amendments:\n", f"amendments:\n{waiver}"))
    code, document, _ = call("cells")
    assert code == 2
    assert "matrix.yaml:17:" in document["error"]


def test_an_image_in_the_registry_without_a_good_run_gets_no_alias(home, call, registry):
    (home.root / "matrix.yaml").write_text(MATRIX.replace(f"default: {FA4}", f"default: {FA0}"))
    code, document, _ = call("publish", FA0, "--to", "registry.example/team/images")
    [row] = document["cells"]
    assert (code, row["status"], document["aliases"], registry) == (1, "failed", {}, [])
    assert "evidence/ has no run of it" in row["error"]


def test_a_waiver_that_waives_nothing_is_named(home, call):
    waiver = "  - {when: gpu=sm_90, waive: torch-runs-on-gpu, on: 2026-11-22, because: y}\n"
    (home.root / "matrix.yaml").write_text(MATRIX.replace("amendments:\n", f"amendments:\n{waiver}"))
    code, document, _ = call("cells", FA0)
    assert code == 0
    assert "matrix.yaml waives torch-runs-on-gpu for cells that do not have that finding" in document["left_out"]


def hide_facts(monkeypatch):
    """Make it as where only this distribution is installed."""
    monkeypatch.setattr(extensions, "load_extensions", lambda _group: [])


def test_a_cell_that_nobody_judged_is_unknown_and_nothing_is_made_of_it(home, call, monkeypatch):
    (home.root / JUDGEMENTS_FILE).unlink()
    hide_facts(monkeypatch)
    code, document, _ = call("cells", FA0)
    [cell] = document["cells"]
    assert (code, [error["id"] for error in cell["errors"]]) == (3, ["not-judged"])
    assert not any(item["trains"] for item in cell["settings"].values())
    for command in ("lock", "build"):
        code, document, _ = call(command, FA0)
        [row] = document["cells"] if isinstance(document, dict) else document
        assert (code, row["status"]) == (3, "failed")
        assert "is not judged" in row["error"]
    assert not (home.root / f"docker/cells/{FA0}").exists()


def test_what_is_kept_of_a_cell_answers_without_facts_and_an_older_matrix_is_said(home, call, monkeypatch):
    (home.root / JUDGEMENTS_FILE).write_text(judge_cells(home, home.matrix.cells).render())
    hide_facts(monkeypatch)
    code, document, _ = call("cells", FA0)
    assert (code, document["cells"][0]["errors"], document["left_out"]) == (0, [], [])
    (home.root / "matrix.yaml").write_text(f"{MATRIX}# changed\n")
    code, document, _ = call("cells", FA0)
    assert (code, document["cells"][0]["errors"]) == (0, [])
    assert "of another matrix.yaml" in document["left_out"][0]


def test_defects_of_the_file_and_cells_that_cannot_work_are_one_list(volta, capsys):
    """An alias that names no cell hid that a cell cannot work."""
    matrix = volta.root / "matrix.yaml"
    missing = BROKEN.replace("tf5.17.0", "tf4.57.6")
    matrix.write_text(matrix.read_text().replace("aliases:\n", f"aliases:\n  old: {missing}\n"))
    assert main.main(["cells"]) == 2
    lines = capsys.readouterr().err.splitlines()
    place = (
        matrix.read_text().splitlines().index(next(x for x in matrix.read_text().splitlines() if "gpu: sm_70, t" in x))
    )
    assert any(line.startswith(f"matrix.yaml:{place + 1}:1: {BROKEN}: torch 2.11.0 has machine code") for line in lines)
    assert any(line.endswith(f"which is no cell; the nearest is {BROKEN}") for line in lines)
    assert len(lines) == 2


def test_a_framework_that_cannot_be_there_or_is_not_known_is_told_before_it_is_locked(home, capsys):
    """`cells` accepted both, and `lock` failed. A package of a private index is unknown until `lock` has found it."""
    item = "  - {{gpu: sm_90, torch: 2.11.0, transformers: {}, base: debian12, framework: {}}}\n"
    lines = item.format("4.57.6", "verl==0.9.1") + item.format("5.17.0", "trll==1.16.0")
    text = MATRIX.replace("cells:\n", f"cells:\n{lines}")
    (home.root / "matrix.yaml").write_text(text)
    place = text[: text.index("trll")].count("\n") + 1
    assert main.main(["cells"]) == 1
    out = capsys.readouterr().out
    assert "-verl0.9.1: verl 0.9.1 needs transformers>=5.5.3,<5.11, you have 4.57.6" in out
    unknown = r"-trll1\.16\.0: there are no facts about trll \(did you mean trl\?\)"
    assert re.search(rf"\nmatrix\.yaml:{place}: \S+{unknown}", out)
    for framework in ("trll==1.16.0", "ms-swift==4.66.0", "our-own==1.0"):
        line = item.format("5.17.0", framework)
        (home.root / "matrix.yaml").write_text(MATRIX.replace("cells:\n", f"cells:\n{line}"))
        assert main.main(["cells"]) == 3, framework
    assert main.main(["cells", FA0]) == 0


def test_an_impossible_cell_is_named_with_its_line_above_the_table(volta, capsys):
    text = (volta.root / "matrix.yaml").read_text().splitlines()
    place = next(number for number, line in enumerate(text, 1) if "gpu: sm_70, t" in line)
    assert main.main(["cells"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"matrix.yaml:{place}: {BROKEN}: torch 2.11.0 has machine code")
