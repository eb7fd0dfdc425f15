"""`knowngood add`: the entry, the lock and the files of a new cell, or nothing at all."""

from __future__ import annotations

import json

import pytest

import samples
from knowngood.cli.main import main
from knowngood.core.cell import parse_cell
from knowngood.core.errors import NetworkError
from knowngood.index import wheel_contents
from knowngood.index.wheel_contents import WheelContents
from knowngood.lock import resolver
from knowngood.project.checkout import Project
from samples import FA2, FA4, with_

NEW = "sm90-cu130-torch2.11.0-tf5.17.0-fa0-triton3.6.0-py311"
ENTRY = "  - gpu: sm_90\n    torch: 2.11.0\n    transformers: 5.17.0\n    base: debian12\n"
BROKEN = "sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311-xtuner0.1.23"


@pytest.fixture
def index(monkeypatch):
    """A resolver and an index that pin what the request pins."""

    def resolve(request, _wheels):
        pins = dict(text.split("==") for text in request.requirements if "==" in text)
        return [
            resolver.PinnedFile(name=name, version=version, url=f"https://files.example/{name}.whl", sha256="a" * 64)
            for name, version in pins.items()
        ]

    def read_contents(places, _notify):
        return {name: WheelContents(size=1000, files={f"{name}.py": "b"}) for name in places}

    monkeypatch.setattr(resolver, "resolve_distributions", resolve)
    monkeypatch.setattr(wheel_contents, "read_contents_of_wheels", read_contents)


def snapshot(home):
    return {path.relative_to(home.root): path.read_bytes() for path in home.root.rglob("*") if path.is_file()}


def run_add(capsys, *words):
    code = main(["add", *words])
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.usefixtures("index")
def test_a_cell_gets_its_entry_its_lock_and_its_dockerfile(home, capsys):
    code, text, _ = run_add(capsys, NEW)
    assert code == 0
    after = (home.root / "matrix.yaml").read_text()
    assert after == samples.MATRIX.replace("aliases:", ENTRY + "aliases:")
    cell = parse_cell(NEW)
    added = Project(home.root)
    assert str(cell) in added.matrix.entries
    assert added.tree.load(cell)
    assert (added.tree.cell_folder(cell) / "Dockerfile").is_file()
    assert ENTRY.rstrip() in text
    assert f"\nrun it: knowngood build-matrix {NEW} && knowngood run {NEW} -- python train.py\n    (" in text


@pytest.mark.usefixtures("index")
def test_a_release_after_the_matrix_s_day_gives_the_cell_a_day_of_its_own(home, capsys):
    matrix = home.root / "matrix.yaml"
    matrix.write_text(samples.MATRIX.replace("locked-at: 2026-11-20", "locked-at: 2026-08-01"))
    assert home.matrix.locked_at == "2026-08-01"
    code, text, _ = run_add(capsys, NEW)
    assert code == 0
    [line] = [line.strip() for line in text.splitlines() if "other cells stay at 2026-08-01" in line]
    day = line.removeprefix("locked-at: ").partition(",")[0]
    assert day > "2026-08-01"
    assert ENTRY.replace("    base", f"    locked-at: {day}\n    base") in matrix.read_text()
    entries = Project(home.root).matrix.entries
    assert {name: item.locked_at for name, item in entries.items() if item.locked_at != "2026-08-01"} == {NEW: day}


@pytest.mark.usefixtures("index")
def test_a_request_is_the_cell_that_pick_gives(home, capsys):
    words = ["--gpu", "H100", "torch==2.11.0", "transformers==5.17.0", "flash-attn==none", "flash-attn-4==none"]
    code, text, _ = run_add(capsys, *words, "--json")
    document = json.loads(text)
    assert (code, document["id"], document["entry"], document["locked"]) == (0, NEW, ENTRY, True)
    assert NEW in Project(home.root).matrix.entries


def test_a_dry_run_prints_the_entry_and_does_nothing(home, capsys):
    before = snapshot(home)
    code, text, _ = run_add(capsys, "--dry-run", NEW)
    assert code == 0
    assert ENTRY in text
    assert f"knowngood build-matrix {NEW} && knowngood run {NEW} -- python train.py" in text
    assert snapshot(home) == before


def test_nothing_is_written_when_locking_fails(home, capsys, monkeypatch):
    def refuse(_request, _wheels):
        raise NetworkError("the index did not answer")

    monkeypatch.setattr(resolver, "resolve_distributions", refuse)
    before = snapshot(home)
    code, _, errors = run_add(capsys, NEW)
    assert (code, "the index did not answer" in errors) == (4, True)
    assert snapshot(home) == before


@pytest.mark.usefixtures("index")
def test_a_matrix_that_changes_meanwhile_is_left_alone(home, capsys, monkeypatch):
    resolve = resolver.resolve_distributions
    edited = samples.MATRIX + "# another editor\n"

    def resolve_slowly(request, wheels):
        (home.root / "matrix.yaml").write_text(edited)
        return resolve(request, wheels)

    monkeypatch.setattr(resolver, "resolve_distributions", resolve_slowly)
    before = snapshot(home)
    code, _, errors = run_add(capsys, NEW)
    assert (code, "was changed meanwhile" in errors) == (1, True)
    after = snapshot(home)
    assert after.pop(next(path for path in after if path.name == "matrix.yaml")).decode() == edited
    assert after == {path: data for path, data in before.items() if path.name != "matrix.yaml"}


@pytest.mark.usefixtures("index")
def test_a_cell_whose_wheel_must_be_compiled_is_added_without_a_lock(home, capsys):
    cell = FA2.replace("tf4.57.6", "tf5.17.0")
    code, text, _ = run_add(capsys, cell)
    assert code == 0
    assert cell in Project(home.root).matrix.entries
    assert Project(home.root).tree.load(parse_cell(cell)) is None
    assert "not locked yet" in text
    assert f"run it: knowngood build-matrix --compile {cell} && knowngood run {cell} --" in text


def test_a_broken_cell_is_refused_unless_an_amendment_waives_the_finding(home, capsys):
    before = snapshot(home)
    code, _, errors = run_add(capsys, "--dry-run", BROKEN)
    assert code == 1
    assert f"{BROKEN} is broken: " in errors
    assert snapshot(home) == before
    amendment = (
        "amendments:\n  - {when: framework=xtuner*, waive: requires:xtuner:python, on: 2026-11-22, because: x}\n"
    )
    (home.root / "matrix.yaml").write_text(with_(("amendments:\n", amendment)))
    assert run_add(capsys, "--dry-run", BROKEN)[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([FA4], 1, f"matrix.yaml has {FA4} already; run it: `knowngood build-matrix {FA4} && knowngood run {FA4} "),
        (["--gpu", "H100"], 1, f"matrix.yaml has {FA4} already"),
        ([NEW.replace("cu130", "cu129")], 2, f"with these releases the cell is {NEW}; `knowngood add {NEW}`"),
        ([NEW.replace("py311", "py312")], 2, "no base of matrix.yaml has Python 3.12; they have 3.11 (debian12)"),
        ([NEW.replace("sm90", "sm75")], 2, "cannot be added: 'sm_75' is not in gpus"),
        ([NEW.replace("2.11.0", "2.99.0")], 2, "run `knowngood harvest torch` if it is new"),
        ([NEW, "--base", "debian13"], 2, "'debian13' is not in bases"),
        ([NEW, "--gpu", "H100"], 2, "--gpu does nothing with a cell id"),
        ([], 2, "nothing to add; give a cell id"),
        (["--gpu", "H100", "neverheardof==0.9"], 3, "no facts about neverheardof"),
        (["--gpu", "H100", "torch==2.0.0", "transformers==5.17.0"], 1, "no cell fits; `knowngood pick --gpu H100"),
    ],
)
def test_what_cannot_be_added_is_refused_with_the_reason(home, capsys, words, code, message):
    before = snapshot(home)
    assert run_add(capsys, *words)[0] == code
    main(["add", *words])
    assert message in capsys.readouterr().err
    assert snapshot(home) == before
