from __future__ import annotations

import dataclasses
import json

import pytest

from knowngood.cli import main
from knowngood.core.cell import parse_cell
from knowngood.images import build_inputs, image_sizes
from knowngood.lock.debian_lock import PackagesLock
from plan_samples import A, B, built
from samples import FA0, FA4, MATRIX, with_


def test_a_blob_that_cells_share_is_counted_once():
    a, b = built(A), built(B)
    measured = image_sizes.measure_images([a, b])
    assert measured.apart == a.size + b.size
    shared = {layer.name for layer in measured.layers if len(layer.cells) == 2}
    assert shared == {f"base-{'b' * 12}", "venv", A.layers[0].name, "workdir"}
    assert measured.unique == measured.apart - 4 * 7 - 2  # the samples' manifests and configs are the same blobs
    assert {item.cell: item.own for item in measured.cells} == {"a": 2 + 14, "b": 2 + 21}


def test_a_blob_that_one_image_has_twice_still_belongs_to_that_image_alone():
    made = built(A)
    first, *rest = made.layers
    doubled = dataclasses.replace(made, layers=(first, dataclasses.replace(first, name="again"), *rest))
    (cell,) = image_sizes.measure_images([doubled]).cells
    assert cell.own == image_sizes.measure_images([made]).cells[0].own
    (layer,) = [item for item in image_sizes.measure_images([doubled]).layers if item.digest == first.digest]
    assert (layer.name, layer.cells) == (first.name, ("a",))


def test_the_largest_layers_come_first_and_explain_an_oversized_cell():
    made = built(A)
    layers = tuple(dataclasses.replace(item, size=place) for place, item in enumerate(made.layers))
    measured = image_sizes.measure_images([dataclasses.replace(made, layers=layers)])
    assert [item.size for item in measured.layers] == sorted(range(len(layers)), reverse=True)
    (cell,) = measured.cells
    assert list(image_sizes.find_oversized_cells(measured, cell.size)) == []
    assert list(image_sizes.find_oversized_cells(measured, cell.size - 1)) == [(cell, measured.layers[0])]


def recorded(home, lock_of, size):
    """A committed record for a cell of the project, of that size."""
    locked = lock_of(FA4)
    shape = build_inputs.read_image_shape(home, locked, "sha256:" + "b" * 64, build_inputs.read_recipe_digest(home))
    made = built(dataclasses.replace(A, cell=FA4, layers=locked.layers, shape=shape))
    made = dataclasses.replace(made, config=dataclasses.replace(made.config, size=size))
    home.tree.record_path(parse_cell(FA4)).write_text(made.render())
    return made


@pytest.mark.parametrize(("size", "code"), [(10**9, 0), (4 * 10**9, 1)])
def test_cells_size_fails_when_a_cell_is_too_large(home, lock_of, capsys, size, code):
    (home.root / "matrix.yaml").write_text(with_(("floors:", "size: {cell: 3 GB}\nfloors:"), text=MATRIX))
    made = recorded(home, lock_of, size)
    assert main.main(["cells", "--size", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["cells"] == [{"cell": FA4, "size": made.size, "own": made.size}]
    assert document["too_large"] == ([FA4] if code else [])
    assert FA0 in document["unrecorded"]
    assert main.main(["cells", "--size"]) == code
    output = capsys.readouterr().out
    assert ("allows 3.00 GB" in output) == bool(code)
    assert f"{FA0}: no record" in output


def test_a_plan_needs_no_engine(lock_of, capsys, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    lock_of(FA4)
    assert main.main(["build", "--plan", "*"]) == 0
    output = capsys.readouterr().out
    assert "base debian12 has no packages.lock" in output
    assert "it has no lock" in output
    assert "nothing counts as built" in output


def test_a_record_older_than_its_image_is_reported_and_is_no_failure(home, lock_of, capsys):
    lock = PackagesLock(
        suite="bookworm", epoch=1, requested=("gcc",), tools=(), packages=(), digest="sha256:" + "b" * 64
    )
    path = home.tree.folder / "bases/debian12/packages.lock"
    path.parent.mkdir(parents=True)
    path.write_text(str(lock))
    for cell in home.matrix.cells:
        lock_of(str(cell))
    recorded(home, lock_of, 10**9)
    assert main.main(["render"]) == 0
    assert main.main(["render", "--check"]) == 0
    assert "recorded" not in capsys.readouterr().out
    (home.suite / "test_it.py").write_text("other")
    assert main.main(["render", "--check"]) == 0
    assert "recorded" not in capsys.readouterr().out, "the suite is not in the image"
    (home.tree.folder / "recipe" / "normalize").write_text("other")
    assert main.main(["render", "--check"]) == 0
    assert f"{FA4}: changed since its image was recorded: docker/recipe" in capsys.readouterr().out
