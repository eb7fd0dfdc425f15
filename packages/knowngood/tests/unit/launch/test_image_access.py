"""Where the image of a cell comes from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.image_record import ImageBlob, ImageRecord, ImageShape
from knowngood.engine import image_store
from knowngood.launch import image_access
from knowngood.lock import lock_tree
from knowngood.registry import image_pull, image_reference
from samples import FA2, FA4

RECORD = ImageRecord(
    cell="x",
    shape=ImageShape(dockerfile="1", lock="2", base="3", recipe="4", uv="5", export="6"),
    manifest=ImageBlob(digest="sha256:manifest", size=1),
    config=ImageBlob(digest="sha256:config", size=1),
    layers=(),
    tools={},
)
CELL = parse_cell(FA4)


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(lock_tree.LockTree, "load_record", lambda *_: RECORD)


def matrix(repository=None):
    return SimpleNamespace(publish=SimpleNamespace(repository=repository, keys=[]))


def test_repositories_come_from_the_environment_and_from_the_matrix():
    environ = {"KNOWNGOOD_REGISTRY": "a/x, b/x", "KNOWNGOOD_REPOSITORY": "b/x"}
    assert image_reference.list_repositories(matrix("c/x"), environ) == ("a/x", "b/x", "c/x")
    assert image_reference.list_repositories(matrix(), {}) == ()


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("digest", ["sha256:manifest", "sha256:config"])
def test_the_recorded_image_in_the_engine_is_used(home, monkeypatch, digest):
    monkeypatch.setattr(image_store, "find_image_id", lambda *_: digest)
    image = image_access.find_recorded_image(home, CELL, None, print)
    assert (image.name, image.digest) == (f"knowngood:{FA4}", digest)


@pytest.mark.usefixtures("recorded")
def test_another_image_in_the_engine_is_not_used_and_named(home, monkeypatch):
    notes = []
    monkeypatch.setattr(image_store, "find_image_id", lambda *_: "sha256:other")
    assert image_access.find_recorded_image(home, CELL, None, notes.append) is None
    assert "sha256:other" in notes[0]
    assert "sha256:manifest" in notes[0]


def test_each_repository_is_asked_until_one_has_the_image(home, monkeypatch):
    def check(_project, registry, *_):
        if "first" in str(registry.repository):
            raise KnowngoodError("its record is of sha256:1, and the tag is sha256:2")
        return SimpleNamespace(repository=str(registry.repository), digest="sha256:manifest")

    pulled, notes = [], []
    monkeypatch.setattr(image_pull, "check_cell_image", check)
    monkeypatch.setattr(image_pull, "pull_checked_image", lambda image, *_: pulled.append(image.repository))
    monkeypatch.setattr(image_store, "find_image_id", lambda *_: "sha256:manifest")
    repositories = ("registry.example/first", "registry.example/second", "registry.example/third")
    image = image_access.pull_recorded_image(home, CELL, None, repositories, notes.append)
    assert pulled == ["registry.example/second"]
    assert image.origin == "pulled from registry.example/second"
    assert any("not from registry.example/first" in note and "sha256:2" in note for note in notes)
    assert image_access.pull_recorded_image(home, CELL, None, repositories[:1], notes.append) is None


@pytest.mark.usefixtures("recorded")
def test_the_size_is_told_before_a_build_and_the_reference_is_by_digest(home):
    assert image_access.describe_build(home, CELL, None) == f"building {CELL}: it has no lock; this is done once"
    reference = image_access.recorded_reference(home, CELL, ("registry.example/a", "registry.example/b"))
    assert reference == "registry.example/a@sha256:manifest"
    assert image_access.recorded_reference(home, CELL, ()) == ""


def test_a_cell_is_not_replaced_by_its_twin_without_flash_attention(home):
    with pytest.raises(MissingError, match=r"knowngood compile.*KNOWNGOOD_REGISTRY"):
        image_access.build_cell_image(home, parse_cell(FA2), print)
