"""Builds in a real engine from a local index that serves wheels flipped, truncated, replaced or not to the end."""

from __future__ import annotations

import contextlib
import hashlib
import json

import index_server
import pytest
import small

pytestmark = pytest.mark.integration

DAMAGES = (index_server.flip, index_server.truncate, index_server.replace)


@pytest.fixture
def index(monkeypatch):
    server = index_server.Index()
    server.start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", server.url)
    monkeypatch.delenv("UV_INDEX_URL", raising=False)
    yield server
    server.stop()


@pytest.fixture
def here(project, index, engine, tmp_path):
    """A project with one cell, of two wheels that no other test has."""
    name = "kg" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]
    wheels = [index.publish(f"{name}one"), index.publish(f"{name}two")]
    cells = small.project(
        project.root,
        small.TRANSFORMERS[0],
        shared={"tools": [wheels[0].name], "python": [wheels[1].name]},
        wheels=wheels,
    )
    yield cells
    with contextlib.closing(engine.client()) as client, contextlib.suppress(Exception):
        client.images.remove(f"knowngood:{cells.matrix.cells[0]}", force=True)


def build(here, *words):
    process = small.command(here, "build", str(here.matrix.cells[0]), "--json", *words)
    out, err = process.communicate(timeout=300)
    return process.returncode, json.loads(out)["cells"][0] if out else {}, err


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_corrupt_wheel_is_named_with_both_hashes_and_the_next_build_goes_on(here, index, damage):
    name, good = list(index.wheels.items())[1]
    index.damage[name] = damage
    code, cell, err = build(here)
    assert code == 1, err
    expected, found = (hashlib.sha256(data).hexdigest() for data in (good, damage(good)))
    assert f"{name} is a corrupt archive" in cell["error"]
    assert f"sha256 expected: {expected}, found: {found}" in cell["error"]
    assert "does not answer" not in cell["error"]
    assert index.requests.count(f"/files/{name}") == 2  # the build, and the reading for the hash
    index.damage.clear()
    code, cell, err = build(here)
    assert (code, cell["image"]["built"]) == (0, True), err


def test_an_index_that_serves_and_states_another_wheel_of_the_same_release_is_refused(here, index):
    """A private index, or a mirror, whose wheel is sound and whose hash is right for it: only the lock knows better."""
    name, good = list(index.wheels.items())[1]
    index.wheels[name] = index_server.replace(good)
    code, cell, err = build(here)
    assert code == 1, err
    expected, found = (hashlib.sha256(data).hexdigest() for data in (good, index.wheels[name]))
    assert f"{name} is a corrupt archive" in cell["error"]
    assert f"sha256 expected: {expected}, found: {found}" in cell["error"]


def test_a_wheel_that_arrives_damaged_once_is_built_with_at_the_second_try(here, index):
    name = list(index.wheels)[1]
    index.damage[name] = lambda data: index_server.flip(data) if index.damage.pop(name, None) else data
    code, cell, err = build(here)
    assert (code, cell["image"]["built"]) == (0, True), err
    assert "building once more" in err
    assert index.requests.count(f"/files/{name}") == 3


def test_a_transfer_that_stops_is_a_failure_of_the_network(here, index):
    name = list(index.wheels)[1]
    index.stops.add(name)
    code, cell, err = build(here)
    assert code == 4, err
    assert "the index stopped in the middle of a download" in cell["error"]
