"""Built again from nothing: the same bytes, or the files that differ."""

from __future__ import annotations

import contextlib
import os

import pytest
import small

from knowngood.images import pipeline, verification
from knowngood.images.pipeline import CellStatus
from knowngood.images.verification import VerificationOutcome

pytestmark = pytest.mark.integration
YEAR_2040 = 2_208_988_800


@pytest.fixture
def line(project, engine, tmp_path):
    here = small.project(project.root, small.TRANSFORMERS[0])
    yield pipeline.Pipeline(here, pipeline.PipelineOptions(wheelhouse=tmp_path, prove=False, record=True), engine)
    with contextlib.closing(engine.client()) as client, contextlib.suppress(Exception):
        client.images.remove(f"knowngood:{here.matrix.cells[0]}", force=True)


def test_a_clock_that_is_wrong_and_an_empty_cache_change_nothing(line):
    (cell,) = line.project.matrix.cells
    assert verification.verify_cell(line, cell, print).outcome is VerificationOutcome.UNRECORDED
    assert line.run(cell, print).status is CellStatus.BUILT
    for folder in (line.project.suite, line.project.tree.folder, line.project.templates):
        for path in folder.rglob("*"):
            os.utime(path, (YEAR_2040, YEAR_2040))
    found = verification.verify_cell(line, cell, print)
    assert (found.outcome, found.differences) == (VerificationOutcome.SAME, ())
    assert found.rebuilt == line.project.tree.load_record(cell).manifest.digest
    (line.project.tree.folder / "recipe/more").write_text("")
    stale = verification.verify_cell(line, cell, print)
    assert (stale.outcome, stale.note) == (VerificationOutcome.STALE, "changed since it was recorded: docker/recipe")


def test_what_comes_out_otherwise_is_named_to_the_file(line):
    (cell,) = line.project.matrix.cells
    recipe = line.project.tree.folder / "recipe/install-layer"
    random = 'head -c 8 /dev/urandom > "$out/opt/knowngood/$name.random"\nchmod "$(shuf -n1 -e 600 640)" "$out/opt"\n'
    recipe.write_text(recipe.read_text().replace('rm -rf "$out/.cache"', random + 'rm -rf "$out/.cache"'))
    assert line.run(cell, print).status is CellStatus.BUILT
    found = verification.verify_cell(line, cell, print)
    assert found.outcome is VerificationOutcome.DIFFERENT
    names = {layer.name for layer in line.project.tree.load(cell).layers}
    differences = {item.name: item.files for item in found.differences}
    assert names <= differences.keys() <= {*names, "config"}
    for name in names:
        assert f"/opt/knowngood/{name}.random: content" in differences[name]
    assert any(line.startswith("rootfs.diff_ids[") for line in differences["config"])
