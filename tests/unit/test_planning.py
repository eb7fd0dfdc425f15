from __future__ import annotations

import dataclasses

import pytest
from samples import distribution

from knowngood.building import planning, record
from knowngood.building.planning import Action, Holdings, Wanted
from knowngood.building.record import Blob, Manifest
from knowngood.building.shape import Shape
from knowngood.locks.lock import Layer

BASE = "sha256:" + "b" * 64


def shape(lock: str, **changes: str) -> Shape:
    fields = {"dockerfile": lock, "lock": lock * 16, "base": BASE, "recipe": "r", "suite": "s" * 16, "uv": "1"}
    return Shape(**{**fields, "export": "zstd", **changes})


def layer(group: str, size: int) -> Layer:
    return Layer(group=group, distributions=(distribution(group, size=size),))


TORCH, NUMBERS, OLD, NEW = layer("torch", 500), layer("numbers", 30), layer("hf-old", 20), layer("hf-new", 25)


def wanted(cell: str, *layers: Layer, **changes: str) -> Wanted:
    return Wanted(cell=cell, layers=layers, shape=shape(cell, **changes))


def built(item: Wanted) -> record.Record:
    names = item.shape.layers(tuple(one.name for one in item.layers))
    blobs = tuple(Blob(digest=f"sha256:{name}", size=7) for name in names)
    image = Manifest(manifest=Blob(digest="sha256:m", size=1), config=Blob(digest="sha256:c", size=1), layers=blobs)
    return record.of(item.cell, item.shape, tuple(one.name for one in item.layers), image, {})


A, B, C = wanted("a", TORCH, OLD), wanted("b", TORCH, NUMBERS, NEW), wanted("c", NUMBERS, NEW)


def layers_of(made: planning.Plan) -> dict[str, planning.LayerPlan]:
    return {item.name: item for item in made.layers}


def test_a_layer_of_several_cells_is_built_and_fetched_once():
    made = planning.plan([A, B], Holdings())
    assert layers_of(made)[TORCH.name].cells == ("a", "b")
    assert made.download == 500 + 20 + 30 + 25
    assert sum(cell.download for cell in made.cells) == made.download


def test_the_cell_that_builds_most_for_others_is_first_and_so_are_its_layers():
    made = planning.plan([C, A, B], Holdings())
    assert [cell.cell for cell in made.cells] == ["b", "a", "c"]
    wheels = [item.name for item in made.layers if item.download]
    assert wheels == [TORCH.name, NUMBERS.name, NEW.name, OLD.name]


def test_only_what_a_cell_alone_has_in_the_whole_matrix_is_its_own():
    made = planning.plan([A], Holdings(), matrix=[B, C])
    assert made.cells[0].only == (OLD.name, f"installed-{'a' * 12}")


def test_what_the_engine_has_is_reused():
    held = Holdings(images=frozenset({A.shape.inputs}), layers=frozenset({(TORCH.name, A.shape.making)}))
    made = planning.plan([A, B], held)
    assert {cell.cell: cell.action for cell in made.cells} == {"b": Action.BUILD, "a": Action.REUSE}
    assert layers_of(made)[TORCH.name].action is Action.REUSE
    assert layers_of(made)[OLD.name].action is Action.REUSE
    assert made.download == 55
    assert made.bases == {BASE: Action.BUILD}


def test_a_layer_made_in_another_way_is_another_layer():
    other = wanted("b", TORCH, base="sha256:" + "c" * 64)
    made = planning.plan([wanted("a", TORCH), other], Holdings(layers=frozenset({(TORCH.name, A.shape.making)})))
    assert made.download == 500
    assert {cell.cell: cell.download for cell in made.cells} == {"a": 0, "b": 500}


def test_weights_come_from_records_and_are_else_unknown():
    made = planning.plan([A, B], Holdings(records=(built(A),)))
    sizes = {item.name: item.size for item in made.layers}
    assert (sizes[TORCH.name], sizes[NEW.name]) == (7, None)
    assert made.size == (7 * 7, 3)
    assert {cell.cell: cell.adds for cell in made.cells} == {"a": 49, "b": None}


def test_a_pulled_base_of_several_layers_counts_as_one():
    image = built(A)
    more = Blob(digest="sha256:more", size=5)
    names = tuple(one.name for one in A.layers)
    blobs = tuple(Blob(digest=item.digest, size=item.size) for item in image.layers)
    whole = Manifest(manifest=image.manifest, config=image.config, layers=(blobs[0], more, *blobs[1:]))
    found = record.of("a", A.shape, names, whole, {})
    assert [item.name for item in found.layers][:3] == [f"base-{'b' * 12}", f"base-{'b' * 12}.2", "venv"]
    sizes = {item.name: item.size for item in planning.plan([A], Holdings(records=(found,))).layers}
    assert sizes[f"base-{'b' * 12}"] == 12


@pytest.mark.parametrize(
    ("item", "action"),
    [
        (Wanted(cell="x", unlocked="it has no lock"), Action.LOCK),
        (Wanted(cell="x", lacks="no wheel"), Action.LACKS),
    ],
)
def test_what_cannot_be_planned_says_why(item, action):
    made = planning.plan([item, A], Holdings())
    found = next(cell for cell in made.cells if cell.cell == "x")
    assert (found.action, found.note) == (action, item.unlocked or item.lacks)
    assert (found.layers, found.adds) == ((), None)


def test_the_document_is_plain():
    import json

    document = json.loads(json.dumps(planning.plan([A], Holdings()).document()))
    assert document["cells"][0]["action"] == "build"
    assert document["built"] == {"bytes": 0, "unknown": 7}


def test_a_shape_says_what_changed():
    before = shape("a")
    assert dataclasses.replace(before, suite="x", base="y").changes(before) == ("the base", "the smoke suite")
    assert dataclasses.replace(before, suite="x").making == before.making


def test_a_cell_that_stands_in_a_registry_is_left_and_comes_last():
    stands = dataclasses.replace(A, stands="it stands as r/kg@sha256:1")
    made = planning.plan([stands, B], Holdings())
    assert [(cell.cell, cell.action, cell.note) for cell in made.cells] == [
        ("b", Action.BUILD, ""),
        ("a", Action.LEAVE, "it stands as r/kg@sha256:1"),
    ]
    assert made.download == 500 + 30 + 25
    assert OLD.name not in layers_of(made)
    assert planning.plan([stands], Holdings()).size == (0, 0)
    assert planning.plan([dataclasses.replace(stands, lacks="a wheel")], Holdings()).cells[0].action is Action.LACKS
