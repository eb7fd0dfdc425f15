"""Which image of a registry is taken for a cell's."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.engine import image_store
from knowngood.project import release_signers
from knowngood.registry import attachments, image_pull, signatures
from knowngood.registry.image_reference import ImageReference, Repository, immutable_tag
from knowngood.registry.manifests import DamagedContentError, RegistryManifest
from memory_registry import IMAGE, MemoryRegistry
from samples import FA0

CELL = parse_cell(FA0)


@pytest.fixture
def registry():
    return MemoryRegistry()


@pytest.fixture
def tag(lock_of):
    return immutable_tag(FA0, lock_of(FA0).digest)


@pytest.fixture
def labels(lock_of):
    return {"io.knowngood.cell": FA0, "io.knowngood.lock": f"sha256:{lock_of(FA0).digest}"}


@pytest.fixture
def key(tmp_path):
    release_signers.make_key_pair(tmp_path / "a.key", tmp_path / "a.pub", None)
    return release_signers.load_signing_key(tmp_path / "a.key")


def test_an_image_that_is_labelled_as_another_cell_is_not_pulled(home, registry, labels, tag):
    registry.manifests[tag] = IMAGE
    with pytest.raises(KnowngoodError, match=f"is labelled as tiny, not as {FA0}; nothing was pulled"):
        image_pull.check_cell_image(home, registry, CELL, [])
    digest = registry.put_image(labels, tag)
    image = image_pull.check_cell_image(home, registry, CELL, [])
    assert (image.digest, image.cell, image.recorded) == (digest, FA0, False)


def test_an_image_of_another_lock_is_not_pulled(home, registry, labels, tag):
    registry.put_image(labels | {"io.knowngood.lock": "sha256:old"}, tag)
    with pytest.raises(KnowngoodError, match=r"is of the lock sha256:old, and .* is locked here as sha256:.*; nothing"):
        image_pull.check_cell_image(home, registry, CELL, [])


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("registry.example/team/images:another", "the signature is for the tag another, not for "),
        ("registry.example/staging/images:{tag}", "the signature is for registry.example/staging/images, not for "),
        ("registry.example/team/images", "the signature is of a document about an image"),
    ],
)
def test_an_image_that_is_signed_for_another_place_is_not_pulled(  # noqa: PLR0917
    home, registry, labels, tag, key, place, reason
):
    digest = registry.put_image(labels, tag)
    signatures.sign_name(registry, place.format(tag=tag), digest, key)
    with pytest.raises(KnowngoodError, match=f"{reason}.*; nothing was pulled"):
        image_pull.check_cell_image(home, registry, CELL, [key.verification_key])
    signatures.sign_name(registry, f"{registry.repository}:{tag}", digest, key)
    assert image_pull.check_cell_image(home, registry, CELL, [key.verification_key]).digest == digest


def test_a_signed_document_under_a_tag_is_no_image(home, registry, key):
    document = attachments.Attachment(media=attachments.SBOM_MEDIA_TYPE, name="sbom", data=b"{}")
    attachments.attach_documents(registry, IMAGE.descriptor, [document])
    manifest = attachments.attachment_manifest(IMAGE.descriptor, document)
    signatures.sign_name(registry, registry.repository, manifest.descriptor.digest, key)
    registry.manifests["default"] = manifest
    reference = ImageReference(repository=Repository.parse(registry.repository), name="default")
    with pytest.raises(KnowngoodError, match=r"is no image of a cell, but application/vnd.cyclonedx"):
        image_pull.check_referenced_image(home, registry, reference, [key.verification_key])


@pytest.mark.parametrize("more", [{"manifests": []}, {"mediaType": "application/vnd.oci.image.index.v1+json"}])
def test_what_clients_read_in_two_ways_is_refused(more):
    data = json.dumps(json.loads(IMAGE.data) | more).encode()
    with pytest.raises(DamagedContentError, match=r"for an index|and served as"):
        RegistryManifest(data=data, media=IMAGE.media).blobs()


def test_an_engine_that_has_another_image_after_the_pull_is_a_failure(home, registry, labels, tag, monkeypatch):
    registry.put_image(labels, tag)
    image = image_pull.check_cell_image(home, registry, CELL, [])
    monkeypatch.setattr(image_store, "find_image_id", lambda *_: "sha256:old")
    for actual in (image.digest, image.content):
        monkeypatch.setattr(image_store, "pull_image", lambda *_, has=actual: has)
        assert image_pull.pull_checked_image(image, None, print)
    monkeypatch.setattr(image_store, "pull_image", lambda *_: "sha256:other")
    with pytest.raises(KnowngoodError, match="and has sha256:other: its store is damaged"):
        image_pull.pull_checked_image(image, None, print)


def pull_with(monkeypatch, events):
    """The lines that a pull shows when the engine reports these events."""
    image = SimpleNamespace(id="sha256:id", tag=lambda *_: None)
    api = SimpleNamespace(pull=lambda *_, **__: iter(events))
    client = SimpleNamespace(api=api, images=SimpleNamespace(get=lambda _: image))
    monkeypatch.setattr(image_store.container_engine, "docker_client", lambda _: contextlib.nullcontext(client))
    lines = []
    engine = SimpleNamespace(host="unix:///s")
    image_store.pull_image(engine, "registry.example/a", "sha256:1", None, 100_000_000, lines.append)
    return lines


def test_a_pull_tells_how_many_bytes_are_here(monkeypatch):
    events = [
        {"status": "Downloading", "id": layer, "progressDetail": {"current": size}}
        for layer, size in (("a", 1_000_000), ("a", 40_000_000), ("b", 1_000_000), ("b", 60_000_000))
    ]
    lines = pull_with(monkeypatch, [{"status": "Pulling from a"}, *events, {"status": "Download complete", "id": "b"}])
    assert lines == ["pulling, 40.0 of 100.0 MB done", "pulling, 100.0 of 100.0 MB done"]


def test_a_pull_that_the_engine_gives_up_has_its_reason(monkeypatch):
    with pytest.raises(KnowngoodError, match="refused: no space left"):
        pull_with(monkeypatch, [{"error": "no space left"}])
