from __future__ import annotations

import dataclasses

import pytest

from knowngood.core import image_record
from knowngood.core.image_record import ImageBlob, ImageManifest
from knowngood.images import matrix_plan
from knowngood.images.matrix_plan import Holdings, PlanAction, PlanInput
from plan_samples import BASE, NEW, NUMBERS, OLD, TORCH, A, B, C, built, shape, wanted


def layers_of(made: matrix_plan.MatrixPlan) -> dict[str, matrix_plan.LayerPlan]:
    return {item.name: item for item in made.layers}


def test_a_shared_layer_is_built_and_downloaded_once():
    made = matrix_plan.plan_matrix([A, B], Holdings())
    assert layers_of(made)[TORCH.name].cells == ("a", "b")
    assert made.download == 500 + 20 + 30 + 25
    assert sum(cell.download for cell in made.cells) == made.download


def test_the_cell_that_builds_most_for_others_is_first_and_so_are_its_layers():
    made = matrix_plan.plan_matrix([C, A, B], Holdings())
    assert [cell.cell for cell in made.cells] == ["b", "a", "c"]
    wheels = [item.name for item in made.layers if item.download]
    assert wheels == [TORCH.name, NUMBERS.name, NEW.name, OLD.name]


def test_layers_that_only_one_cell_of_the_matrix_has():
    made = matrix_plan.plan_matrix([A], Holdings(), others=[B, C])
    assert made.cells[0].only == (OLD.name, f"installed-{'a' * 12}")


def test_layers_of_images_in_the_engine_are_reused():
    held = Holdings(images=frozenset({A.shape.inputs}), layers=frozenset({(TORCH.name, A.shape.layer_inputs)}))
    made = matrix_plan.plan_matrix([A, B], held)
    assert {cell.cell: cell.action for cell in made.cells} == {"b": PlanAction.BUILD, "a": PlanAction.REUSE}
    assert layers_of(made)[TORCH.name].action is PlanAction.REUSE
    assert layers_of(made)[OLD.name].action is PlanAction.REUSE
    assert made.download == 55
    assert made.bases == {BASE: PlanAction.BUILD}


@pytest.mark.parametrize("cells", [[A, B], [B, A]])
def test_a_layer_that_one_of_the_cells_has_in_the_engine_is_reused_by_all(cells):
    made = matrix_plan.plan_matrix(cells, Holdings(images=frozenset({A.shape.inputs})))
    shared = layers_of(made)[TORCH.name]
    assert (shared.action, shared.download) == (PlanAction.REUSE, 0)
    assert set(shared.cells) == {"a", "b"}


def test_the_size_of_a_layer_is_that_of_its_last_build():
    first = built(A)
    again = dataclasses.replace(first, layers=tuple(dataclasses.replace(item, size=9) for item in first.layers))
    made = matrix_plan.plan_matrix([A], Holdings(records=(first, again)))
    assert layers_of(made)[TORCH.name].size == 9


def test_nothing_is_built_for_a_cell_that_misses_a_wheel():
    made = matrix_plan.plan_matrix([dataclasses.replace(A, missing_wheel="no wheel")], Holdings())
    assert made.layers == ()
    assert made.bases == {}


def test_no_base_is_needed_for_a_cell_that_is_not_built():
    assert matrix_plan.plan_matrix([A], Holdings(images=frozenset({A.shape.inputs}))).bases == {}
    assert matrix_plan.plan_matrix([A], Holdings(bases=frozenset({BASE}))).bases == {BASE: PlanAction.REUSE}


def test_a_layer_that_was_recorded_as_empty_has_no_weight_in_the_order():
    """Its weight is not the size of its wheels, which counts only for a layer that was never built."""
    image = built(wanted("a", TORCH, OLD))
    empty = tuple(dataclasses.replace(item, size=0 if item.name == TORCH.name else 7) for item in image.layers)
    held = Holdings(records=(dataclasses.replace(image, layers=empty),))
    names = [item.name for item in matrix_plan.plan_matrix([A], held).layers if item.download]
    assert names == [OLD.name, TORCH.name]


def test_a_layer_made_in_another_way_is_another_layer():
    other = wanted("b", TORCH, base="sha256:" + "c" * 64)
    made = matrix_plan.plan_matrix(
        [wanted("a", TORCH), other], Holdings(layers=frozenset({(TORCH.name, A.shape.layer_inputs)}))
    )
    assert made.download == 500
    assert {cell.cell: cell.download for cell in made.cells} == {"a": 0, "b": 500}


def test_sizes_come_from_records_and_are_unknown_without():
    made = matrix_plan.plan_matrix([A, B], Holdings(records=(built(A),)))
    sizes = {item.name: item.size for item in made.layers}
    assert (sizes[TORCH.name], sizes[NEW.name]) == (7, None)
    assert made.size == (6 * 7, 3)
    assert {cell.cell: cell.adds for cell in made.cells} == {"a": 42, "b": None}


def test_a_pulled_base_of_several_layers_counts_as_one():
    image = built(A)
    more = ImageBlob(digest="sha256:more", size=5)
    names = tuple(one.name for one in A.layers)
    blobs = tuple(ImageBlob(digest=item.digest, size=item.size) for item in image.layers)
    whole = ImageManifest(manifest=image.manifest, config=image.config, layers=(blobs[0], more, *blobs[1:]))
    found = image_record.image_record_from_manifest("a", A.shape, names, whole, {})
    assert [item.name for item in found.layers][:3] == [f"base-{'b' * 12}", f"base-{'b' * 12}.2", "venv"]
    sizes = {item.name: item.size for item in matrix_plan.plan_matrix([A], Holdings(records=(found,))).layers}
    assert sizes[f"base-{'b' * 12}"] == 12


@pytest.mark.parametrize(
    ("item", "action"),
    [
        (PlanInput(cell="x", lock_problem="it has no lock"), PlanAction.LOCK),
        (PlanInput(cell="x", missing_wheel="no wheel"), PlanAction.LACKS),
        (PlanInput(cell="x", lock_defect="it was edited"), PlanAction.REFUSED),
    ],
)
def test_a_cell_that_cannot_be_planned_has_a_reason(item, action):
    made = matrix_plan.plan_matrix([item, A], Holdings())
    found = next(cell for cell in made.cells if cell.cell == "x")
    assert (found.action, found.note) == (action, item.lock_problem or item.missing_wheel or item.lock_defect)
    assert (found.layers, found.adds) == ((), None)


def test_the_document_is_json():
    import json

    document = json.loads(json.dumps(matrix_plan.plan_matrix([A], Holdings()).document()))
    assert document["cells"][0]["action"] == "build"
    assert document["built"] == {"bytes": 0, "unknown": 6}


def test_a_shape_describes_its_changes():
    before = shape("a")
    assert dataclasses.replace(before, lock="x", base="y").describe_changes(before) == ("the lock", "the base")
    assert dataclasses.replace(before, lock="x").layer_inputs == before.layer_inputs
