"""The smoke suite as a document about an image: the newest signed one comes back, and nothing of it runs here."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from knowngood.core.errors import KnowngoodError
from knowngood.registry import attachments, publication_check, signatures, suite_artifact
from knowngood.smoke import suite_files
from memory_registry import DIGEST, IMAGE, MemoryRegistry


@pytest.fixture
def registry(home):
    """A registry whose image has an older and a newer suite attached, and documents of other kinds."""
    memory = MemoryRegistry()
    newer = suite_artifact.suite_attachment(home.suite, "2026-11-22T10:00:00+00:00")
    memory.newer = suite_files.hash_suite(home.suite)
    (home.suite / "test_it.py").write_text("def test(): assert True\n")
    older = suite_artifact.suite_attachment(home.suite, "2026-11-21T10:00:00+00:00")
    memory.older = suite_files.hash_suite(home.suite)
    other = attachments.Attachment(media=attachments.TIER_MEDIA_TYPE, name="tier.json", data=b"{}")
    attachments.attach_documents(memory, IMAGE.descriptor, [newer, older, other])
    memory.signed = attachments.attachment_manifest(IMAGE.descriptor, older).descriptor.digest
    return memory


def test_the_newest_suite_comes_back_as_it_was(registry, tmp_path):
    suite = suite_artifact.fetch_attached_suite(registry, DIGEST, ())
    assert suite.sha256 == registry.newer
    assert suite_files.hash_suite(suite.write_files(tmp_path)) == registry.newer


def test_only_a_signed_suite_counts_where_a_signer_is_named(registry, monkeypatch):
    monkeypatch.setattr(signatures, "is_document_signed", lambda _, digest, __: digest == registry.signed)
    key = type("Key", (), {"name": "team.pub"})()
    assert suite_artifact.fetch_attached_suite(registry, DIGEST, [key]).sha256 == registry.older
    monkeypatch.setattr(signatures, "is_document_signed", lambda *_: False)
    with pytest.raises(KnowngoodError, match=r"none that is signed with team\.pub attached"):
        suite_artifact.fetch_attached_suite(registry, DIGEST, [key])


def test_an_image_without_a_suite_says_what_to_do():
    with pytest.raises(KnowngoodError, match="no smoke suite attached; `knowngood publish` attaches it"):
        suite_artifact.fetch_attached_suite(MemoryRegistry(), DIGEST, ())


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"schema": "knowngood/suite/2", "suite": "5", "files": {}},
        {"schema": suite_artifact.SUITE_SCHEMA, "suite": 5, "files": {}},
        {"schema": suite_artifact.SUITE_SCHEMA, "suite": "5", "files": {"smoke_tests/../../x": ""}},
        {"schema": suite_artifact.SUITE_SCHEMA, "suite": "5", "files": {"/smoke_tests/x": ""}},
        {"schema": suite_artifact.SUITE_SCHEMA, "suite": "5", "files": {"smoke_tests": ""}},
        {"schema": suite_artifact.SUITE_SCHEMA, "suite": "5", "files": {"smoke_tests/x": 1}},
    ],
)
def test_what_is_no_suite_is_refused(document):
    with pytest.raises(KnowngoodError, match="x is not a smoke suite"):
        suite_artifact.parse_suite_document(json.dumps(document).encode(), "x")


def test_verify_answers_also_for_a_document_that_is_not_json():
    kernels = attachments.Attachment(media="application/vnd.knowngood.kernels.v1.tar+xz", name="k", data=b"\xfd")
    tier = replace(kernels, media=attachments.TIER_MEDIA_TYPE, data=b"{}")
    image = publication_check.PublishedImage(
        name="x", digest=DIGEST, size=1, labels={}, attached=(kernels, tier), problems=(), recorded={}
    )
    assert [item["document"] for item in image.document()["attached"]] == [None, {}]
