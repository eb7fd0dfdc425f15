"""Damage in the storage of a real registry: what `publish` says of it, what `--repair` mends, and what it cannot."""

from __future__ import annotations

import json
import shutil

import pytest
import registry_server
from publishing import publish

from knowngood.core.errors import KnowngoodError
from knowngood.engine import embedded_engine
from knowngood.registry import attachments, image_transfer, publication_check
from knowngood.registry.content_inspection import InspectionDepth
from knowngood.registry.image_reference import ImageReference, Repository
from knowngood.registry.manifests import INDEX_MEDIA_TYPE, RegistryManifest
from knowngood.registry.publication import PublishStatus
from knowngood.registry.registry_client import Registry

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
]


class Published:
    """A release in a registry whose files the test damages."""

    def __init__(self, server, release, engine, name):
        self.server, self.release, self.engine = server, release, engine
        self.registry = Registry(Repository.parse(f"http://{server.address}/{name}"), attempts=2)
        self.folder = server.storage / "repositories" / name
        assert publish(release, self.registry, engine).status is PublishStatus.PUBLISHED
        self.manifest = self.registry.manifest(release.digest)
        self.config, self.small, self.large = self.manifest.blobs()
        self.list_tag = attachments.fallback_tag(release.digest)
        self.list = self.registry.manifest(self.list_tag)

    def publish(self, depth=InspectionDepth.BYTES):
        return publish(self.release, self.registry, self.engine, depth)

    def verify(self):
        reference = ImageReference(repository=self.registry.repository, name=self.release.tag)
        return publication_check.read_published_name(self.registry, reference, print).problems

    def file(self, content):
        """The file of a content: a blob, the manifest, a document, the manifest of a document, or their list."""
        document = self.release.attachments[0]
        digests = {
            "config": self.config.digest,
            "layer": self.large.digest,
            "manifest": self.release.digest,
            "document": document.blob.digest,
            "attachment": attachments.attachment_manifest(self.manifest.descriptor, document).descriptor.digest,
            "list": self.list.descriptor.digest,
        }
        return self.server.blob_path(digests[content])

    def tag(self, name):
        return self.folder / "_manifests/tags" / name


@pytest.fixture(params=[False, True], ids=["", "sizes in memory"])
def server(request, registry_program, tmp_path, monkeypatch):
    monkeypatch.setattr(image_transfer, "cache_folder", lambda: tmp_path / "notes")
    server = registry_server.Server(registry_program, tmp_path, cache=request.param)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def published(server, scratch, engine):
    return Published(server, scratch, engine, "team/cells")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def delete(path):
    path.unlink()


def move_tag(one):
    """Another image, of the same blobs, is under the tag."""
    other = RegistryManifest(data=one.manifest.data + b"\n", media=one.manifest.media)
    one.registry.put_manifest(other, one.release.tag)


def empty_list(one):
    data = json.dumps({"schemaVersion": 2, "mediaType": INDEX_MEDIA_TYPE, "manifests": []}).encode()
    one.registry.put_manifest(RegistryManifest(data=data, media=INDEX_MEDIA_TYPE), one.list_tag)


MENDED = {
    "a layer deleted": lambda one: delete(one.file("layer")),
    "the config deleted": lambda one: delete(one.file("config")),
    "the manifest deleted": lambda one: delete(one.file("manifest")),
    "the whole storage of blobs deleted": lambda one: shutil.rmtree(one.server.storage / "blobs"),
    "a layer no longer linked": lambda one: shutil.rmtree(one.folder / "_layers/sha256" / one.large.digest[7:]),
    "the tag deleted": lambda one: shutil.rmtree(one.tag(one.release.tag)),
    "the tag emptied": lambda one: (one.tag(one.release.tag) / "current/link").write_text(""),
    "the tag moved": move_tag,
    "a document deleted": lambda one: delete(one.file("document")),
    "the manifest of a document deleted": lambda one: delete(one.file("attachment")),
    "the list deleted": lambda one: shutil.rmtree(one.tag(one.list_tag)),
    "the list flipped": lambda one: flip(one.file("list")),
    "the list truncated": lambda one: truncate(one.file("list")),
    "the list emptied": empty_list,
}


@pytest.mark.parametrize("name", MENDED)
def test_repair_sends_what_is_missing(published, name):
    MENDED[name](published)
    status = published.publish().status
    if name in ("the tag deleted", "the whole storage of blobs deleted"):
        assert status is PublishStatus.PUBLISHED
    elif name != "a layer no longer linked":  # with sizes in memory, the registry still serves it
        assert status is PublishStatus.REPAIRED
    assert published.verify() == ()
    again = published.publish()
    assert (again.status, again.pushed, again.attached) == (PublishStatus.UNCHANGED, 0, ())


@pytest.mark.parametrize("content", ["layer", "manifest", "document"])
@pytest.mark.parametrize("damage", [flip, truncate])
def test_what_the_registry_keeps_damaged_is_named_with_its_place(published, content, damage):
    path = published.file(content)
    damage(path)
    with pytest.raises(KnowngoodError, match="keeps what is damaged") as raised:
        published.publish()
    place = path.parent.relative_to(published.server.storage.parent.parent.parent)
    assert f"{place}/" in str(raised.value)
    shutil.rmtree(path.parent)  # what the message says
    assert published.publish().status is PublishStatus.REPAIRED
    assert published.verify() == ()


@pytest.mark.parametrize("content", ["layer", "document"])
@pytest.mark.parametrize("damage", [flip, truncate, delete])
def test_unchanged_is_said_only_of_what_was_looked_at(published, content, damage):
    damage(published.file(content))
    same_size = damage is flip
    try:
        result = published.publish(InspectionDepth.SIZE)
    except KnowngoodError:
        assert not same_size
        return
    assert (result.status is PublishStatus.UNCHANGED) is same_size
    assert (published.verify() == ()) is not same_size, "the bytes are read by verify"


def test_a_tag_of_an_image_that_was_never_here_stays(published):
    """The tag of another image is not taken by one that the registry does not have."""
    shutil.rmtree(published.folder / "_manifests/revisions/sha256" / published.release.digest[7:])
    shutil.rmtree(published.tag(published.list_tag))
    move_tag(published)
    moved = published.registry.digest(published.release.tag)
    with pytest.raises(KnowngoodError, match="never overwritten"):
        published.publish()
    assert published.registry.digest(published.release.tag) == moved != published.release.digest


def test_a_moved_tag_needs_repair(published):
    move_tag(published)
    with pytest.raises(KnowngoodError, match="`--repair` puts the tag back"):
        published.publish(InspectionDepth.SIZE)


def test_a_document_that_cannot_be_made_again_leaves_the_list(published):
    older = attachments.Attachment(media=attachments.EVIDENCE_MEDIA_TYPE, name="older.json", data=b'{"image": "x"}')
    attachments.attach_documents(published.registry, published.manifest.descriptor, [older])
    delete(published.server.blob_path(older.blob.digest))
    assert older.blob.digest in published.verify()[0]
    assert published.publish().status is PublishStatus.REPAIRED
    assert published.verify() == ()
