"""Signatures in a real registry: verified by this program and by Debian's skopeo, and refused after every forgery."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import re
import subprocess
import tarfile

import pytest
import skopeo_client
import test_registry_trust

from conftest import make_key
from knowngood.cli import main
from knowngood.engine import container_engine, image_store
from knowngood.project import release_seal
from knowngood.registry import attachments, signatures, signed_documents
from knowngood.registry.image_reference import immutable_tag
from knowngood.registry.manifests import MANIFEST_MEDIA_TYPE, RegistryManifest

pytestmark = pytest.mark.integration


def push(world, tag=None, env=(), *, signed=False) -> RegistryManifest:
    """Push a small image of the cell, and sign it and its documents if wanted; return its manifest."""
    registry, tag = world.registry, tag or world.alias
    manifest = test_registry_trust.push(registry, world.locked, tag, [*env])
    if signed:
        digest = manifest.descriptor.digest
        documents = attachments.fetch_attachments(registry, digest)
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "cell", "digest": {"sha256": digest.removeprefix("sha256:")}}],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {},
        }
        provenance = attachments.Attachment(
            media=attachments.PROVENANCE_MEDIA_TYPE, name="p.json", data=json.dumps(statement).encode()
        )
        attachments.attach_documents(registry, manifest.descriptor, [provenance])
        documents = [item for item in documents if item.media != provenance.media] + [provenance]
        signatures.sign_release(registry, tag, documents, world.key, manifest.descriptor)
    return manifest


EVIL = ["LD_PRELOAD=/tmp/evil.so"]


def move_signatures(registry, source, target):
    """Name the signatures of one image as those of another, as an attacker with write access can."""
    for tag in (signed_documents.signature_tag, signed_documents.attestation_tag):
        registry.put_manifest(registry.manifest(tag(source.descriptor.digest)), tag(target.descriptor.digest))


def test_skopeo_takes_a_signed_image_and_no_forged_one(world, skopeo):
    skopeo_client.write_policy(world.folder, world.registry.repository.host, world.folder / "release.pub")
    good = push(world, signed=True)
    for name in (world.reference, f"{world.registry.repository}@{good.descriptor.digest}"):
        result = skopeo_client.copy(skopeo, world.folder, name)
        assert result.returncode == 0, result.stderr

    forged = push(world, env=EVIL)
    result = skopeo_client.copy(skopeo, world.folder, world.reference)
    assert (result.returncode, "signature was required" in result.stderr) == (1, True), result.stderr

    move_signatures(world.registry, good, forged)
    result = skopeo_client.copy(skopeo, world.folder, world.reference)
    assert (result.returncode, "Source image rejected" in result.stderr) == (1, True), result.stderr

    signatures.sign_name(world.registry, world.reference, forged.descriptor.digest, make_key(world.folder, "other"))
    result = skopeo_client.copy(skopeo, world.folder, world.reference)
    assert (result.returncode, "Source image rejected" in result.stderr) == (1, True), result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="unpacked, podman runs for root only")
def test_podman_takes_a_signed_image_and_no_forged_one(world, podman):
    skopeo_client.write_policy(world.folder, world.registry.repository.host, world.folder / "release.pub")
    good = push(world, signed=True)
    result = skopeo_client.pull_with_podman(podman, world.folder, world.reference)
    assert result.returncode == 0, result.stderr
    forged = push(world, env=EVIL)
    for reason in ("A signature was required", "Signature for digest .* does not match"):
        result = skopeo_client.pull_with_podman(podman, world.folder, world.reference)
        assert (result.returncode, bool(re.search(reason, result.stderr))) == (125, True), result.stderr
        move_signatures(world.registry, good, forged)
    world.registry.put_manifest(push(world, "old", ["OLD=1"], signed=True), world.alias)
    result = skopeo_client.pull_with_podman(podman, world.folder, world.reference)
    assert (result.returncode, "Source image rejected" in result.stderr) == (125, True), result.stderr


def test_skopeo_takes_no_image_under_the_tag_of_another(world, skopeo):
    skopeo_client.write_policy(world.folder, world.registry.repository.host, world.folder / "release.pub")
    world.registry.put_manifest(push(world, "old", signed=True), world.alias)
    assert skopeo_client.copy(skopeo, world.folder, f"{world.registry.repository}:old").returncode == 0
    result = skopeo_client.copy(skopeo, world.folder, world.reference)
    assert (result.returncode, "Source image rejected" in result.stderr) == (1, True), result.stderr


def verify(capsys, world, tag=None):
    return test_registry_trust.verify(capsys, world.registry, tag or world.alias)


def test_verify_takes_a_signed_image(world, capsys):
    push(world, signed=True)
    code, answer = verify(capsys, world)
    assert (code, answer["problems"]) == (0, [])
    assert answer["signature"] == {
        "signed": True,
        "key": "keys/release.pub",
        "identity": None,
        "required": ["keys/release.pub"],
    }
    signed = {item["name"]: item["signed"] for item in answer["attached"]}
    assert signed.pop("1.json") is False, "the provenance that nobody signed"
    assert set(signed.values()) == {True}


def forge_nothing(*_):
    """Only the forged image, with no signature at all."""


def forge_by_moving(world, good, forged):
    move_signatures(world.registry, good, forged)


def forge_with_another_key(world, _good, forged):
    signatures.sign_release(world.registry, world.alias, [], make_key(world.folder, "other"), forged.descriptor)


def forge_payload(world, good, forged):
    """Write the digest of the forged image into the payload, and keep the signature of the good one."""
    (document,) = signed_documents.read_cosign_documents(
        world.registry, signed_documents.signature_tag(good.descriptor.digest)
    )
    data = document.data.replace(good.descriptor.digest.encode(), forged.descriptor.digest.encode())
    flipped = dataclasses.replace(document, data=data)
    signed_documents.add_cosign_document(
        world.registry, signed_documents.signature_tag(forged.descriptor.digest), flipped
    )


def forge_malformed(world, _good, forged):
    """Signatures that are no base64 and no DER."""
    for text in ("%%%", "AAAA", ""):
        document = signed_documents.CosignDocument(
            media=signed_documents.PAYLOAD_MEDIA_TYPE,
            data=f"payload {text}".encode(),
            annotations={signed_documents.SIGNATURE_ANNOTATION: text},
        )
        signed_documents.add_cosign_document(
            world.registry, signed_documents.signature_tag(forged.descriptor.digest), document
        )


FORGERIES = {
    forge_nothing: "the registry has no signature of it",
    forge_by_moving: "the signature is of sha256:",
    forge_with_another_key: "the signature is by another key, or what it signs was changed",
    forge_payload: "the signature is by another key, or what it signs was changed",
    forge_malformed: "the signature is not written in base64",
}


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_verify_refuses_a_forged_image(world, capsys, forge):
    good, forged = push(world, signed=True), push(world, env=EVIL)
    forge(world, good, forged)
    code, answer = verify(capsys, world)
    assert (code, answer["signature"]["signed"]) == (1, False)
    assert FORGERIES[forge] in answer["problems"][0]


def test_verify_refuses_a_signature_that_was_damaged_in_the_registry(world, capsys):
    tag = signed_documents.signature_tag(push(world, signed=True).descriptor.digest)
    document = world.registry.manifest(tag).document
    document["layers"][0]["annotations"][signed_documents.SIGNATURE_ANNOTATION] = "MEUCIQ=="
    world.registry.put_manifest(RegistryManifest(data=json.dumps(document).encode(), media=MANIFEST_MEDIA_TYPE), tag)
    code, answer = verify(capsys, world)
    assert (code, answer["signature"]["signed"]) == (1, False)


def test_verify_refuses_an_image_under_the_tag_of_another(world, capsys):
    world.registry.put_manifest(push(world, "old", signed=True), world.alias)
    code, answer = verify(capsys, world)
    assert code == 1
    assert f"the signature is for the tag old, not for {world.alias}" in answer["problems"][0]
    assert verify(capsys, world, "old")[0] == 0
    signatures.sign_name(world.registry, world.reference, answer["digest"], world.key)
    assert verify(capsys, world)[0] == 0


def test_documents_that_nobody_signed_do_not_count(world, capsys):
    signatures.sign_name(world.registry, world.reference, push(world).descriptor.digest, world.key)
    code, answer = verify(capsys, world)
    assert (code, answer["signature"]["signed"]) == (1, True)
    assert "no SBOM is attached" in answer["problems"]
    assert any(text.startswith("no signed provenance") for text in answer["problems"])


def test_without_a_key_everything_is_said_to_be_unsigned(world, project, capsys):
    matrix = project.root / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("key: keys/release.pub, ", ""))
    push(world)
    code, answer = verify(capsys, world)
    assert (code, answer["signature"]) == (
        0,
        {"signed": False, "key": None, "identity": None, "required": []},
    )


def pull(capsys, *words):
    capsys.readouterr()
    code = main.main(["pull", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)["images"][0]


@pytest.fixture
def origin(world, monkeypatch):
    """The repository of the test, as `KNOWNGOOD_REPOSITORY` names it."""
    monkeypatch.setenv("KNOWNGOOD_REPOSITORY", f"http://{world.registry.repository}")


def lock_tag(world, revision=1):
    return immutable_tag(str(world.locked.cell), world.locked.digest, revision)


@pytest.mark.usefixtures("origin")
def test_pull_takes_the_recorded_image_and_no_other(world, project, capsys):
    assert pull(capsys, "--dry-run")[0] == 1, "nothing is published"
    good = push(world, lock_tag(world), signed=True)
    digest = good.descriptor.digest
    code, row = pull(capsys, world.alias, "--dry-run")
    assert (code, row["digest"], row["recorded"], row["signature"]["key"]) == (0, digest, False, "keys/release.pub")
    test_registry_trust.record(project, world.locked, good)
    code, row = pull(capsys, str(world.locked.cell), "--dry-run")
    assert (code, row["digest"], row["recorded"]) == (0, digest, True)
    assert row["name"] == f"knowngood:{world.locked.cell}"

    forged = push(world, lock_tag(world), env=EVIL)
    code, row = pull(capsys, world.alias, "--dry-run")
    assert (code, row["status"]) == (1, "failed")
    assert f"is of {digest}" in row["error"]
    assert forged.descriptor.digest in row["error"]
    assert "nothing was pulled" in row["error"]
    world.registry.put_manifest(good, lock_tag(world, 2))
    assert pull(capsys, world.alias, "--dry-run")[0] == 0, "the recorded image is a later revision"

    reference = f"http://{world.registry.repository}@{forged.descriptor.digest}"
    code, row = pull(capsys, reference, "--dry-run")
    assert (code, "the configuration differ" in row["error"]) == (1, True)


@pytest.mark.usefixtures("origin")
@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_pull_refuses_a_forged_image_without_a_record(world, capsys, forge):
    good, forged = push(world, lock_tag(world), signed=True), push(world, lock_tag(world), env=EVIL)
    forge(world, good, forged)
    code, row = pull(capsys, world.alias, "--dry-run")
    assert (code, row["status"]) == (1, "failed")
    assert FORGERIES[forge] in row["error"]


def test_pull_of_an_image_needs_no_repository(world, capsys, monkeypatch):
    monkeypatch.delenv("KNOWNGOOD_REPOSITORY", raising=False)
    assert main.main(["pull", world.alias]) == 2
    assert "no repository; name one: --from" in capsys.readouterr().err
    push(world, signed=True)
    assert pull(capsys, f"http://{world.reference}", "--dry-run")[0] == 0
    assert main.main(["pull", f"http://{world.reference}", "--from", "registry.example/x"]) == 2


@pytest.mark.usefixtures("origin")
def test_pull_gets_an_image_into_the_engine(world, engine, capsys):
    image = push_real(world, lock_tag(world))
    code, row = pull(capsys, world.alias)
    assert (code, "is not signed with keys/release.pub" in row["error"]) == (1, True)
    signatures.sign_name(world.registry, f"{world.registry.repository}:{lock_tag(world)}", image.digest, world.key)
    name = f"knowngood:{world.locked.cell}"
    with container_engine.docker_client(engine) as client:
        previous = image_store.find_image_id(engine, name)
        try:
            code, row = pull(capsys, world.alias)
            assert (code, row["status"], row["error"]) == (0, "pulled", None)
            assert client.images.get(name).labels["io.knowngood.cell"] == str(world.locked.cell)
            assert image_store.find_image_id(engine, name) in (image.digest, row["digest"])
            assert pull(capsys, world.alias)[1]["status"] == "unchanged"
        finally:
            client.images.remove(name, force=True)
            client.images.remove(f"{world.registry.repository}@{image.digest}", force=True)
            if previous:
                client.images.get(previous).tag(*name.split(":", 1))


def push_real(world, tag):
    """Push an image that an engine can unpack, and return its descriptor."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as layers:
        layers.addfile(tarfile.TarInfo("hello"), io.BytesIO())
    layer = world.registry.put_bytes(archive.getvalue(), "application/vnd.oci.image.layer.v1.tar")
    lock = f"sha256:{world.locked.digest}"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": {"io.knowngood.cell": str(world.locked.cell), "io.knowngood.lock": lock}},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    }
    blob = world.registry.put_bytes(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "config": blob.document(),
        "layers": [layer.document()],
    }
    manifest = RegistryManifest(data=json.dumps(document).encode(), media=MANIFEST_MEDIA_TYPE)
    world.registry.put_manifest(manifest, tag)
    return manifest.descriptor


def test_signing_again_adds_nothing_and_another_key_adds_its_own(world):
    image, registry = push(world, signed=True).descriptor, world.registry
    tags = [signed_documents.signature_tag(image.digest), signed_documents.attestation_tag(image.digest)]
    first = [registry.digest(tag) for tag in tags]
    documents = attachments.fetch_attachments(registry, image.digest)
    signatures.sign_release(registry, world.alias, documents[-1:], world.key, image)
    assert [registry.digest(tag) for tag in tags] == first

    other, trusted = make_key(world.folder, "other"), [world.key.verification_key]
    signatures.renew_signatures(registry, image.digest, world.alias, [], other, trusted)
    judgement = signatures.judge_signatures(registry, image, world.alias, documents, [other.verification_key])
    assert judgement.problems == ()
    assert len(judgement.signed) == 4
    assert signatures.is_image_signed(registry, image.digest, trusted)


def test_openssl_verifies_the_seal(project, tmp_path):
    key = make_key(tmp_path)
    release_seal.write_release_seal(project.root, key)
    seal = project.root / "seal.json"
    (tmp_path / "signature").write_bytes(base64.b64decode((project.root / "seal.json.sig").read_bytes()))
    argv = ["openssl", "dgst", "-sha256", "-verify", tmp_path / "release.pub", "-signature", tmp_path / "signature"]
    assert subprocess.run([*argv, seal], check=False, capture_output=True).returncode == 0
    seal.write_text(seal.read_text().replace("facts/torch.json", "facts/other.json"))
    assert subprocess.run([*argv, seal], check=False, capture_output=True).returncode == 1
