"""`knowngood plan --format bake`, built by `docker buildx bake` itself."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess

import pytest
import small

from knowngood.images import bake_file, image_build, pipeline
from knowngood.images.cell_tasks import CellStatus
from knowngood.index import index_settings

pytestmark = pytest.mark.integration


@pytest.fixture
def line(project, engine, tmp_path):
    here = small.project(project.root, *small.TRANSFORMERS)
    yield pipeline.Pipeline(here, pipeline.PipelineOptions(wheelhouse=tmp_path, prove=False), engine)
    with contextlib.closing(engine.client()) as client:
        for cell in here.matrix.cells:
            with contextlib.suppress(Exception):
                client.images.remove(f"knowngood:{cell}", force=True)


def planned(line, *words):
    process = small.command(line.project, "plan", "--format", "bake", *words)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out)


def buildx(line, folder, document, *words):
    (folder / "docker-bake.json").write_text(json.dumps(document))
    (folder / "env").write_text(index_settings.read_index_settings().shell())
    (network,) = {target["network"] for target in document["target"].values()}
    (folder / "network.yml").write_text(json.dumps(bake_file.render_network_file(document["target"], network)))
    files = ["--file", str(folder / "network.yml"), "--file", str(folder / "docker-bake.json")]
    argv = [*line.engine.docker, "buildx", "bake", *words, *files]
    environment = {**line.engine.environment(), bake_file.BAKE_FOLDER_VARIABLE: str(folder)}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)


def test_bake_reads_it_and_builds_the_same_images(line, tmp_path):
    """Each by bake, then by this program: the digest is the same, though nothing is taken from the first."""
    cells = line.project.matrix.cells
    for cell in cells:
        line.plan(line.project.tree.load(cell), print)  # the base into the cache, the Dockerfile beside the lock
    document = planned(line)
    printed = buildx(line, tmp_path, document, "--print")
    assert printed.returncode == 0, printed.stderr
    seen = json.loads(printed.stdout)
    assert seen["group"]["default"]["targets"] == [bake_file.dotless_name(str(cell)) for cell in cells]
    for name, target in document["target"].items():
        assert seen["target"][name]["contexts"] == target["contexts"]
        assert seen["target"][name]["output"] == target["output"]
        assert seen["target"][name]["labels"] == target["labels"]

    assert line.run(cells[0], print).status is CellStatus.BUILT
    with contextlib.closing(line.engine.client()) as client:
        digest = {str(cells[0]): client.images.get(f"knowngood:{cells[0]}").id}
        client.images.remove(f"knowngood:{cells[0]}", force=True)
        built = buildx(line, tmp_path, document)
        assert built.returncode == 0, built.stderr
        by_bake = {str(cell): client.images.get(f"knowngood:{cell}").id for cell in cells}
        assert by_bake[str(cells[0])] == digest[str(cells[0])]
        client.images.remove(f"knowngood:{cells[1]}", force=True)
        assert line.run(cells[1], print).status is CellStatus.BUILT
        assert client.images.get(f"knowngood:{cells[1]}").id == by_bake[str(cells[1])]


def test_an_image_that_bake_built_is_known_by_its_inputs(line, tmp_path):
    cell = line.project.matrix.cells[0]
    plan = line.plan(line.project.tree.load(cell), print)
    document = planned(line, str(cell))
    done = buildx(line, tmp_path, document)
    assert done.returncode == 0, done.stderr
    found = image_build.find_image(plan, line.engine)
    assert found is not None
    assert not found.built


def test_what_is_not_locked_or_not_rendered_is_no_bake_file(line):
    cell = line.project.matrix.cells[0]
    for said in ("Dockerfile is stale; run `knowngood render`", "its lock is missing or stale"):
        process = small.command(line.project, "plan", "--format", "bake", str(cell))
        _, err = process.communicate(timeout=300)
        assert process.returncode == 1
        assert said in err
        shutil.rmtree(line.project.tree.cell_folder(cell), ignore_errors=True)
