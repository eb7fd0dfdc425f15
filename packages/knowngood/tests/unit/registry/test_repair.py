"""Repairing in a registry that replaces what it is sent, and in one that keeps what it has."""

from __future__ import annotations

import dataclasses

import pytest

from knowngood.core.errors import KnowngoodError
from knowngood.registry import attachments, image_transfer, publication
from knowngood.registry.attachments import Attachment
from knowngood.registry.content_inspection import ContentInspector, InspectionDepth
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import DamagedContentError, Descriptor, RegistryManifest
from knowngood.registry.publication import ImageRelease, PublishStatus
from memory_registry import CONFIG, DIGEST, IMAGE, LAYERS, MemoryRegistry

SBOM = Attachment(media=attachments.SBOM_MEDIA_TYPE, name="sbom.cdx.json", data=b"{}")
RELEASE = ImageRelease(
    cell="tiny", image="tiny:1", digest=DIGEST, tag="tag", tier="built", labels={}, attachments=(SBOM,)
)
LAYER = Descriptor.of(LAYERS[0], "").digest


@pytest.fixture(params=[False, True], ids=["replaces", "keeps"])
def registry(request, tmp_path, monkeypatch):
    """A registry with the whole release; the engine's store is a folder with the same blobs."""
    store = tmp_path / "store"
    store.mkdir()
    for data in (CONFIG, *LAYERS, IMAGE.data):
        (store / Descriptor.of(data, "").digest[7:]).write_bytes(data)
    monkeypatch.setattr(image_transfer.image_store, "_find_store", lambda *_: store)
    monkeypatch.setattr(image_transfer.image_store, "read_manifest_bytes", lambda *_: IMAGE.data)
    monkeypatch.setattr(image_transfer, "cache_folder", lambda: tmp_path / "cache")
    memory = MemoryRegistry(Repository.parse("registry.example/team/images"), keeps=request.param)
    assert publish(memory).status is PublishStatus.PUBLISHED
    memory.puts.clear()
    return memory


def publish(registry, depth=InspectionDepth.SIZE, release=RELEASE):
    inspector = ContentInspector(registry=registry, depth=depth, notify=print)
    state = publication.inspect_publication(RELEASE.tag, DIGEST, inspector)
    return publication.publish_release(release, inspector, state, lambda: None)


def test_a_sound_image_is_only_read(registry):
    for depth in InspectionDepth:
        assert publish(registry, depth).status is PublishStatus.UNCHANGED
    assert registry.puts == []


@pytest.mark.parametrize("digest", [LAYER, Descriptor.of(CONFIG, "").digest, SBOM.blob.digest])
def test_damaged_bytes_are_replaced_or_named(registry, digest):
    registry.blobs[digest] = bytes(len(registry.blobs[digest]))
    assert publish(registry).status is PublishStatus.UNCHANGED, "its size is right"
    if registry.keeps:
        with pytest.raises(KnowngoodError, match=rf"docker/registry/v2/blobs/sha256/{digest[7:9]}/{digest[7:]}/"):
            publish(registry, InspectionDepth.BYTES)
        return
    assert publish(registry, InspectionDepth.BYTES).status is PublishStatus.REPAIRED
    assert set(registry.puts) >= {digest}
    assert publish(registry, InspectionDepth.BYTES).status is PublishStatus.UNCHANGED


def test_what_is_missing_is_sent_without_reading_the_rest(registry):
    del registry.blobs[LAYER]
    result = publish(registry)
    assert (result.status, result.pushed) == (PublishStatus.REPAIRED, len(LAYERS[0]))
    assert [str(fault) for fault in result.faults] == [f"layer 1 of 2 ({LAYER}) is missing or does not have its size"]
    assert registry.puts == [LAYER]


def test_a_tag_is_put_back_only_by_a_repair(registry):
    registry.manifests["tag"] = RegistryManifest(data=IMAGE.data + b"\n", media=IMAGE.media)
    with pytest.raises(KnowngoodError, match="`--repair` puts the tag back"):
        publish(registry)
    assert publish(registry, InspectionDepth.BYTES).status is PublishStatus.REPAIRED
    assert registry.digest("tag") == DIGEST


@pytest.mark.parametrize("other", [None, RegistryManifest(data=IMAGE.data + b"\n", media=IMAGE.media)])
def test_a_tag_that_is_lost_after_it_was_put_is_a_failure(registry, monkeypatch, other):
    def lose(manifest, reference):
        put(manifest, reference)
        registry.manifests[reference] = other

    del registry.manifests["tag"]
    put = registry.put_manifest
    monkeypatch.setattr(registry, "put_manifest", lose)
    with pytest.raises(DamagedContentError, match=rf":tag is not {DIGEST} although it was just put there"):
        publish(registry)
    with pytest.raises(DamagedContentError, match=rf":default is not {DIGEST} although it was just put there"):
        publication.move_alias(registry, "default", DIGEST)


@pytest.mark.parametrize("digest", [LAYER, SBOM.blob.digest])
def test_what_is_lost_after_it_was_sent_gets_no_tag(registry, digest):
    class Losing(MemoryRegistry):
        def put(self, blob, opener):
            super().put(blob, opener)
            self.blobs.pop(digest, None)

    first = Losing(registry.repository)
    first.manifests.clear()
    first.blobs.clear()
    with pytest.raises(DamagedContentError, match="is missing"):
        publish(first)
    assert "tag" not in first.manifests


def test_an_image_without_the_labels_of_its_release_gets_no_tag(registry):
    del registry.manifests["tag"]
    with pytest.raises(KnowngoodError, match=r"io\.knowngood\.cell"):
        publish(registry, release=dataclasses.replace(RELEASE, labels={"io.knowngood.cell": "another"}))
    assert "tag" not in registry.manifests
