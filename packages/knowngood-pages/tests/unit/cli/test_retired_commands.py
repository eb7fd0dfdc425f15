"""Commands and a retired cell: `cells` marks it, nothing builds or publishes it, and its successor is named."""

from __future__ import annotations

import json

import pytest

from knowngood.cli import main
from knowngood_facts.compat import knowledge
from knowngood_pages import catalog, catalog_collection
from samples import FA0, FA2, FA4, MATRIX, with_

SENTENCE = f"{FA2} was retired on 2026-11-01; its successor is {FA4}"


@pytest.fixture
def matrix(home):
    """A project whose second item is retired; its alias `old` names one of its cells."""
    lists = "flash-attn: [2.8.3.post2, none]\n"
    text = with_(
        (lists, f"{lists}    retired: {{on: 2026-11-01, for: {FA4}}}\n"), ("aliases:\n", f"aliases:\n  old: {FA2}\n")
    )
    (home.root / "matrix.yaml").write_text(text)
    return home


@pytest.mark.usefixtures("matrix")
def test_cells_lists_and_marks_it(capsys):
    assert main.main(["cells", "--long"]) == 0
    out = capsys.readouterr().out
    assert next(line for line in out.splitlines() if line.startswith(FA2)).split("  ")[1].strip() == "none, retired"
    assert SENTENCE in out
    assert main.main(["cells", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["retired"] for cell in cells] == [None, *[{"on": "2026-11-01", "for": FA4}] * 2]


@pytest.mark.parametrize(("retired", "code"), [("", 1), ("    retired: {on: 2026-11-01}\n", 0)])
def test_a_broken_cell_fails_until_it_is_retired(home, capsys, retired, code):
    lists = "flash-attn: [2.8.3.post2, none]\n"
    text = with_(
        (lists, f"flash-attn: none\n{retired}"),
        (
            "- gpu: sm_90\n    torch: 2.11.0\n    transformers: 4.57.6",
            "- gpu: sm_70\n    torch: 2.11.0\n    transformers: 4.57.6",
        ),
    )
    (home.root / "matrix.yaml").write_text(text.replace("gpus:\n", "gpus:\n  sm_70: {family: Volta, cards: [V100]}\n"))
    assert main.main(["cells"]) == code
    assert "BROKEN" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["build", "--dry-run"],
        ["build-matrix", "--dry-run"],
        ["lock"],
        ["build", "--plan"],
        ["cells", "--jobs", "images"],
        ["publish", "--to", "http://127.0.0.1:9/a"],
        ["compile"],
        ["smoke"],
        ["verify"],
        ["audit"],
    ],
)
@pytest.mark.parametrize("name", [FA2, "old"])
@pytest.mark.usefixtures("matrix")
def test_what_would_work_on_it_names_the_successor(capsys, words, name):
    assert main.main([words[0], name, *words[1:]]) == 2
    assert SENTENCE in capsys.readouterr().err


@pytest.mark.usefixtures("matrix")
def test_all_and_globs_leave_it_out(lock_of, capsys):
    for name in (FA4, FA2, FA0):
        lock_of(name)
    assert main.main(["build", "--plan", "*", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["cells"]
    assert [item["cell"] for item in planned] == [FA4]
    assert main.main(["lock", "--locked", "sm90-*", "--json"]) == 0
    assert [item["id"] for item in json.loads(capsys.readouterr().out)] == [FA4]


def test_its_lock_stays_and_a_missing_one_is_not_wanted(matrix, lock_of, capsys):
    lock_of(FA4)
    kept = lock_of(FA2)
    assert main.main(["render"]) == 0
    capsys.readouterr()
    assert main.main(["render", "--check"]) == 0
    assert matrix.tree.load(kept.cell) == kept
    assert FA0 not in capsys.readouterr().out


@pytest.mark.usefixtures("matrix")
def test_what_reads_its_lock_adds_a_note(lock_of, capsys):
    lock_of(FA2)
    assert main.main(["export", "old"]) == 0
    out, err = capsys.readouterr()
    assert err == f"note: {SENTENCE}\n"
    assert "torch==2.11.0" in out


def test_the_catalog_has_it(matrix):
    known = knowledge.load_knowledge()
    cells, _ = catalog_collection.collect_catalog_cells(matrix, matrix.evidence, known)
    marks = {
        cell.id: cell.retired and (cell.retired.on, cell.retired.successor)
        for cell in map(catalog.CatalogCell.model_validate, cells)
    }
    assert marks == {FA4: None, FA2: ("2026-11-01", FA4), FA0: ("2026-11-01", FA4)}


def test_a_broken_retirement_stops_check_with_its_line(matrix, capsys):
    (matrix.root / "matrix.yaml").write_text(
        with_(("flash-attn: [2.8.3.post2, none]\n", "flash-attn: none\n    retired: yes\n"), text=MATRIX)
    )
    assert main.main(["check", "torch==2.11.0"]) == 2
    assert "matrix.yaml:31:14: cells[1].retired must be a mapping" in capsys.readouterr().err
