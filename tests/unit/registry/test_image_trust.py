"""What `pull` and `publish` refuse to believe: signatures of other images, other cells, forgetful registries."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from memory_registry import CONFIG, DIGEST, IMAGE, MemoryRegistry

from knowngood.core.errors import KnowngoodError
from knowngood.project import signing_keys
from knowngood.registry import image_pull, publication, signatures
from knowngood.registry.content_inspection import ContentInspector, InspectionDepth
from knowngood.registry.cosign_tags import signature_tag
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import DamagedContentError, Descriptor, RegistryManifest

REPOSITORY = Repository.parse("registry.example/team/images")
TAG = f"{REPOSITORY}:tag"
LABELS = {"io.knowngood.cell": "tiny"}


@pytest.fixture
def key(tmp_path):
    private = tmp_path / "release.key"
    signing_keys.make_key_pair(private, tmp_path / "release.pub", None)
    return signing_keys.load_signing_key(private)


def put_other_image(registry) -> str:
    """Put an image with another configuration, and return its digest."""
    config = registry.put_bytes(CONFIG.replace(b"tiny", b"more"), "application/vnd.oci.image.config.v1+json")
    document = json.loads(IMAGE.data) | {"config": config.document()}
    manifest = RegistryManifest(data=json.dumps(document).encode(), media=IMAGE.media)
    registry.put_manifest(manifest, manifest.descriptor.digest)
    return manifest.descriptor.digest


def test_a_signature_of_another_image_does_not_count(key):
    registry = MemoryRegistry(REPOSITORY)
    other = put_other_image(registry)
    signatures.sign_name(registry, TAG, other, key)
    verifiers = [key.verification_key]
    assert signatures.judge_image_signature(registry, other, "tag", verifiers).signer is not None
    registry.put_manifest(registry.manifest(signature_tag(other)), signature_tag(DIGEST))
    judged = signatures.judge_image_signature(registry, DIGEST, "tag", verifiers)
    assert judged.signer is None
    assert f"the signature is of {other}, another image" in judged.problems[0]


def test_a_signature_for_another_tag_does_not_count(key):
    registry = MemoryRegistry(REPOSITORY)
    signatures.sign_name(registry, TAG, DIGEST, key)
    assert signatures.judge_image_signature(registry, DIGEST, None, [key.verification_key]).signer is not None
    judged = signatures.judge_image_signature(registry, DIGEST, "older", [key.verification_key])
    assert judged.signer is None
    assert "the signature is for the tag tag, not for older" in judged.problems[0]


def test_an_image_that_is_labelled_as_another_cell_is_not_pulled(monkeypatch):
    registry = MemoryRegistry(REPOSITORY)
    project = SimpleNamespace(tree=SimpleNamespace(load_record=lambda _cell: None))
    monkeypatch.setattr(image_pull.image_release, "require_lock", lambda *_: None)
    monkeypatch.setattr(image_pull, "_published_tags", lambda *_: {"tag": DIGEST})
    assert image_pull.check_cell_image(project, registry, "tiny", []).digest == DIGEST
    with pytest.raises(KnowngoodError, match="is labelled as tiny, not as large; nothing was pulled"):
        image_pull.check_cell_image(project, registry, "large", [])


def test_an_image_without_a_label_is_not_pulled_as_a_cell(monkeypatch):
    registry = MemoryRegistry(REPOSITORY)
    monkeypatch.setattr(image_pull.image_transfer, "config_labels", lambda _data: {})
    with pytest.raises(KnowngoodError, match="is labelled as None, not as tiny"):
        image_pull._check_image(registry, DIGEST, "tag", [], "tiny", [])


class ForgetfulRegistry(MemoryRegistry):
    """Says that it has put a tag, and does not."""

    def put_manifest(self, manifest, reference):
        if reference.startswith("sha256:"):
            super().put_manifest(manifest, reference)
        self.puts.append(reference)


def release():
    return publication.ImageRelease(
        cell="tiny", image="tiny:1", digest=DIGEST, tag="tag", tier="built", labels=LABELS, attachments=()
    )


def publish(registry):
    inspector = ContentInspector(registry=registry, depth=InspectionDepth.SIZE, notify=print)
    state = publication.inspect_publication("tag", DIGEST, inspector)
    return publication.publish_release(release(), inspector, state, lambda: None)


def test_a_tag_that_is_lost_after_it_was_put_is_an_error():
    with pytest.raises(DamagedContentError, match=f"tag is not {DIGEST} although it was just put there"):
        publish(ForgetfulRegistry(REPOSITORY))
    with pytest.raises(DamagedContentError, match=f"alias is not {DIGEST} although it was just put there"):
        publication.move_alias(ForgetfulRegistry(REPOSITORY), "alias", DIGEST)


def test_what_is_published_for_the_first_time_is_read_back(monkeypatch):
    calls = []
    monkeypatch.setattr(publication.image_transfer, "check_published_image", lambda *call: calls.append(call[1:]))
    monkeypatch.setattr(publication, "_check_what_was_sent", lambda digest, _inspector: calls.append(digest))
    registry = MemoryRegistry(REPOSITORY)
    publish(registry)
    assert calls == [DIGEST, (DIGEST, LABELS)]
    publish(registry)
    assert len(calls) == 2, "it is there, so nothing is read"


def test_an_image_with_other_labels_than_its_release_is_not_tagged():
    registry = MemoryRegistry(REPOSITORY)
    wrong = CONFIG.replace(b"tiny", b"tidy")
    registry.blobs[Descriptor.of(CONFIG, "").digest] = wrong
    with pytest.raises(KnowngoodError):
        publish(registry)
    assert registry.digest("tag") is None
