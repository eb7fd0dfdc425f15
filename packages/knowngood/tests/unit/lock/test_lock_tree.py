from __future__ import annotations

import json

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import UsageError
from samples import FA0, FA2, FA4


def test_what_is_saved_is_loaded(home, lock_of):
    for identity in (FA4, FA2, FA0):
        made = lock_of(identity)
        assert home.tree.load(parse_cell(identity)) == made


def test_a_cell_that_was_never_locked_has_none(home):
    assert home.tree.load(parse_cell(FA4)) is None


def test_saving_the_same_again_changes_nothing(home, lock_of):
    made = lock_of(FA4)
    before = {path: path.stat().st_mtime_ns for path in home.root.rglob("*") if path.is_file()}
    assert home.tree.save(made) is False
    assert {path: path.stat().st_mtime_ns for path in home.root.rglob("*") if path.is_file()} == before


def test_cells_share_their_equal_layers(home, lock_of):
    first, second = lock_of(FA2), lock_of(FA0)
    shared = {layer.name for layer in first.layers} & {layer.name for layer in second.layers}
    assert {name.split("-")[0] for name in shared} == {"torch", "python"}
    assert len(list((home.tree.folder / "layers").iterdir())) == len(first.layers)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "not well-formed JSON"),
        (lambda _: "", "1:1: not well-formed JSON"),
        (lambda _: "[]", "the file must be an object, not a list"),
        (lambda _: "null", "must be an object, not null"),
        (lambda _: "\xff", "0xff is not UTF-8"),
        (lambda text: text.replace('"layers"', '"layer"'), "unknown key 'layer'; the nearest known one is 'layers'"),
        (lambda text: text.replace("knowngood/cell/1", "knowngood/cell/9"), "schema must be 'knowngood/cell/1'"),
        (lambda text: text.replace(FA4, FA0), f"it is the lock of {FA0}"),
        (lambda text: text.replace('  "torch-', '  "../torch-'), "must be text like"),
        (lambda text: json.dumps(json.loads(text) | {"layers": []}), "its layers were changed by hand"),
        (lambda text: json.dumps(json.loads(text) | {"layers": [5]}), r"layers\[0\] must be text"),
        (
            lambda text: json.dumps(json.loads(text) | {"layers": ["gone-1.0-000000000000"]}),
            "requirements.txt is missing",
        ),
        (lambda text: json.dumps(json.loads(text) | {"lock": "0" * 64}), "its layers were changed by hand"),
    ],
)
def test_a_damaged_cell_says_so_and_what_to_do(home, lock_of, damage, message):
    lock_of(FA4)
    path = home.tree.cell_folder(parse_cell(FA4)) / "cell.json"
    path.write_bytes(damage(path.read_text()).encode("latin-1"))
    with pytest.raises(UsageError, match=message) as caught:
        home.tree.load(parse_cell(FA4))
    assert "cell.json" in str(caught.value) or "requirements.txt" in str(caught.value)
    assert "run `knowngood lock` again" in str(caught.value) or "layer" in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("torch==2.11.0", "torch==2.11.1"),
        lambda text: text.replace("sha256:", "sha256:f", 1)[:-1],
        lambda text: text + text.splitlines()[-1] + "\n",
        lambda _: "",
    ],
)
def test_requirements_that_were_edited_are_refused(home, lock_of, damage):
    made = lock_of(FA4)
    (layer,) = [layer for layer in made.layers if layer.group == "torch"]
    path = home.tree.folder / "layers" / layer.name / "requirements.txt"
    path.write_text(damage(path.read_text()))
    with pytest.raises(UsageError):
        home.tree.load(parse_cell(FA4))


def test_a_layer_under_a_name_of_other_content_is_refused(home, lock_of):
    made = lock_of(FA4)
    (layer,) = [layer for layer in made.layers if layer.group == "torch"]
    path = home.tree.folder / "layers" / layer.name
    path.rename(path.with_name("torch-2.11.0-000000000000"))
    cell = home.tree.cell_folder(parse_cell(FA4)) / "cell.json"
    cell.write_text(cell.read_text().replace(layer.name, "torch-2.11.0-000000000000"))
    with pytest.raises(UsageError, match=r"requirements.txt: the content was changed by hand"):
        home.tree.load(parse_cell(FA4))


def test_orphans_are_cells_and_layers_that_nothing_names(home, lock_of):
    kept = lock_of(FA2)
    lock_of(FA4)
    stray = home.tree.folder / "layers" / "notes.txt"
    stray.write_text("x")
    cells = [parse_cell(FA2)]
    orphans = home.tree.orphans(cells)
    assert home.tree.cell_folder(parse_cell(FA4)) in orphans
    assert not any(layer.name == path.name for layer in kept.layers for path in orphans)
    assert home.tree.prune(cells) == orphans
    assert not stray.exists()
    assert home.tree.orphans(cells) == []
    assert home.tree.load(parse_cell(FA2)) == kept


def test_a_link_is_removed_and_not_what_it_points_to(home, lock_of, tmp_path):
    lock_of(FA4)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine")
    (home.tree.folder / "cells" / "old").symlink_to(elsewhere)
    home.tree.prune([parse_cell(FA4)])
    assert (elsewhere / "file").read_text() == "mine"
    assert not (home.tree.folder / "cells" / "old").is_symlink()
