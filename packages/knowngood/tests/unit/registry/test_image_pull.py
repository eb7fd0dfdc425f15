"""Which image of a registry is taken for a cell's."""

from __future__ import annotations

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.engine import image_store
from knowngood.project import release_signers
from knowngood.registry import image_pull, signatures
from knowngood.registry.image_reference import immutable_tag
from memory_registry import DIGEST, IMAGE, MemoryRegistry
from samples import FA0

CELL = parse_cell(FA0)


@pytest.fixture
def registry(lock_of):
    """A registry with an image under the tag of the cell's lock; its label names the cell `tiny`."""
    memory = MemoryRegistry()
    memory.manifests[immutable_tag(FA0, lock_of(FA0).digest)] = IMAGE
    return memory


def label(monkeypatch, cell):
    monkeypatch.setattr(image_pull.image_transfer, "config_labels", lambda _: {"io.knowngood.cell": cell})


def test_an_image_that_is_labelled_as_another_cell_is_not_pulled(home, registry, monkeypatch):
    with pytest.raises(KnowngoodError, match=f"is labelled as tiny, not as {FA0}; nothing was pulled"):
        image_pull.check_cell_image(home, registry, CELL, [])
    label(monkeypatch, FA0)
    image = image_pull.check_cell_image(home, registry, CELL, [])
    assert (image.digest, image.cell, image.recorded) == (DIGEST, FA0, False)


def test_an_image_that_is_signed_for_another_tag_is_not_pulled(home, registry, monkeypatch, tmp_path):
    label(monkeypatch, FA0)
    release_signers.make_key_pair(tmp_path / "a.key", tmp_path / "a.pub", None)
    key = release_signers.load_signing_key(tmp_path / "a.key")
    signatures.sign_name(registry, f"{registry.repository}:another", DIGEST, key)
    with pytest.raises(KnowngoodError, match=r"the signature is for the tag another, .*; nothing was pulled"):
        image_pull.check_cell_image(home, registry, CELL, [key.verification_key])


def test_an_engine_that_has_another_image_after_the_pull_is_a_failure(home, registry, monkeypatch):
    label(monkeypatch, FA0)
    image = image_pull.check_cell_image(home, registry, CELL, [])
    monkeypatch.setattr(image_store, "find_image_id", lambda *_: "sha256:old")
    for actual in (image.digest, image.content):
        monkeypatch.setattr(image_store, "pull_image", lambda *_, has=actual: has)
        assert image_pull.pull_checked_image(image, None)
    monkeypatch.setattr(image_store, "pull_image", lambda *_: "sha256:other")
    with pytest.raises(KnowngoodError, match="and has sha256:other: its store is damaged"):
        image_pull.pull_checked_image(image, None)
