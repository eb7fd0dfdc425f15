"""Images in a real registry that a CI job signed with its identity, and forgeries of them.

The job's sigstore is a throwaway one on the loopback interface (`tests/unit/sigstore_server.py`); certificates, log and
signatures are made and verified by the package `sigstore`. What the real services made is verified in
`tests/unit/project/test_keyless_identity.py`.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import test_registry_trust

from knowngood.cli import main
from knowngood.core.publish_policy import SigningIdentity
from knowngood.lock.lock_tree import CellLock
from knowngood.project import release_signers
from knowngood.registry import attachments, signatures
from knowngood.registry.attachments import Attachment
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import RegistryManifest
from knowngood.registry.registry_client import Registry

pytestmark = pytest.mark.integration

JOB = "https://gitlab.example/team/images//.gitlab-ci.yml@refs/heads/main"
EVIL = ["LD_PRELOAD=/tmp/evil.so"]


def _load_sigstore_server() -> Any:
    path = Path(__file__).parents[1] / "unit/sigstore_server.py"
    spec = importlib.util.spec_from_file_location("sigstore_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sigstore_server = _load_sigstore_server()


@dataclass(frozen=True, kw_only=True)
class World:
    """A repository, the cell of an alias, and the identity that matrix.yaml names."""

    registry: Registry
    root: Path
    alias: str
    locked: CellLock
    identity: SigningIdentity

    def sign(self, manifest: RegistryManifest, tag: str) -> None:
        """Sign an image and its documents as the CI job that has the identity does."""
        (named,) = release_signers.load_trusted_identities(self.root, [self.identity])
        signer = release_signers.find_keyless_signer([named])
        documents = attachments.fetch_attachments(self.registry, manifest.descriptor.digest)
        documents = [item for item in documents if not signatures.is_bundle(item)]
        signatures.sign_release(self.registry, tag, documents, signer, manifest.descriptor)


@pytest.fixture
def world(server, project, tmp_path, monkeypatch):
    for name in ("GITHUB_ACTIONS", "BUILDKITE", "CIRCLECI", release_signers.SIGNING_KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.make_token(JOB))
    monkeypatch.chdir(project.root)
    sigstore = sigstore_server.Sigstore()
    (project.root / "trust.json").write_text(sigstore.trust())
    alias, name = next(iter(project.matrix.aliases.items()))
    cell = next(cell for cell in project.matrix.cells if str(cell) == name)
    project.tree.record_path(cell).unlink(missing_ok=True)
    matrix = project.root / "matrix.yaml"
    text = matrix.read_text()
    assert text.count("publish: {") == 1
    item = f"identity: {{issuer: '{sigstore_server.ISSUER}', subject: '{JOB}', trust: trust.json}}"
    matrix.write_text(text.replace("publish: {", f"publish: {{{item}, "))
    path = re.sub(r"[^a-z0-9]", "", tmp_path.name.lower())
    yield World(
        registry=Registry(Repository.parse(f"http://{server.address}/{path}")),
        root=project.root,
        alias=alias,
        locked=project.tree.load(cell),
        identity=SigningIdentity(issuer=sigstore_server.ISSUER, subject=JOB, trust="trust.json"),
    )
    sigstore.close()


def push(world, tag=None, env=(), *, signed=False) -> RegistryManifest:
    """Push a small image of the cell with a whole provenance, and sign it if wanted."""
    manifest = test_registry_trust.push(world.registry, world.locked, tag or world.alias, [*env])
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "cell", "digest": {"sha256": manifest.descriptor.digest.removeprefix("sha256:")}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {},
    }
    provenance = Attachment(media=attachments.PROVENANCE_MEDIA_TYPE, name="1.json", data=json.dumps(statement).encode())
    listed, _ = attachments.list_referrers(world.registry, manifest.descriptor.digest)
    others = [item["digest"] for item in listed if item["artifactType"] == provenance.media]
    attachments.attach_documents(world.registry, manifest.descriptor, [provenance], without=others)
    if signed:
        world.sign(manifest, tag or world.alias)
    return manifest


def verify(capsys, world, tag=None):
    return test_registry_trust.verify(capsys, world.registry, tag or world.alias)


def pull(capsys, *words):
    capsys.readouterr()
    code = main.main(["pull", *words, "--dry-run", "--json"])
    return code, json.loads(capsys.readouterr().out)["images"][0]


def test_verify_and_pull_take_an_image_of_the_identity(world, capsys):
    push(world, signed=True)
    code, answer = verify(capsys, world)
    assert (code, answer["problems"]) == (0, [])
    assert answer["signature"]["identity"] == {"issuer": sigstore_server.ISSUER, "subject": JOB}
    assert {item["signed"] for item in answer["attached"]} == {True}
    assert len(answer["attached"]) == 4, "signatures are no documents"
    code, row = pull(capsys, f"http://{world.registry.repository}:{world.alias}")
    assert (code, row["signature"]["signed"]) == (0, True)
    assert main.main(["publish", "--verify", f"http://{world.registry.repository}:{world.alias}"]) == 0
    assert f"signed with the identity {JOB} of {sigstore_server.ISSUER}" in capsys.readouterr().out


def bundles(world, manifest) -> list[Attachment]:
    documents = attachments.fetch_attachments(world.registry, manifest.descriptor.digest)
    return [item for item in documents if signatures.is_bundle(item)]


def forge_nothing(*_):
    """Only the forged image, with no signature at all."""


def forge_by_moving(world, good, forged):
    attachments.attach_documents(world.registry, forged.descriptor, bundles(world, good))


def forge_statement(world, good, forged):
    """Write the digest of the forged image into what was signed, and keep the signature."""
    changed = []
    for item in bundles(world, good):
        document = json.loads(item.data)
        payload = base64.b64decode(document["dsseEnvelope"]["payload"]).decode()
        names = [manifest.descriptor.digest.removeprefix("sha256:") for manifest in (good, forged)]
        document["dsseEnvelope"]["payload"] = base64.b64encode(payload.replace(*names).encode()).decode()
        changed.append(dataclasses.replace(item, data=json.dumps(document).encode()))
    attachments.attach_documents(world.registry, forged.descriptor, changed)


def forge_with_another_identity(world, _good, forged):
    """Another job that the same sigstore certifies signs the image for its own identity."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.make_token(f"{JOB}-fork"))
        other = dataclasses.replace(world, identity=dataclasses.replace(world.identity, subject=f"{JOB}-fork"))
        other.sign(forged, world.alias)


def forge_with_another_sigstore(world, _good, forged):
    """Somebody runs a sigstore that certifies whatever he likes."""
    evil = sigstore_server.Sigstore()
    (world.root / "evil.json").write_text(evil.trust())
    dataclasses.replace(world, identity=dataclasses.replace(world.identity, trust="evil.json")).sign(
        forged, world.alias
    )
    evil.close()


def forge_malformed(world, _good, forged):
    item = Attachment(media=signatures.BUNDLE_MEDIA_TYPE, name="x", data=b"[" * 10_000)
    attachments.attach_documents(world.registry, forged.descriptor, [item])


FORGERIES = {
    forge_nothing: "the registry has no signature of it",
    forge_by_moving: "the signature is of sha256:",
    forge_statement: "DSSE: invalid signature",
    forge_with_another_identity: f"is by {JOB}-fork, does not hold for the identity {JOB} of",
    forge_with_another_sigstore: "failed to build timestamp certificate chain",
    forge_malformed: "what should be a bundle of sigstore is none",
}


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_verify_and_pull_refuse_a_forged_image(world, capsys, forge):
    good, forged = push(world, signed=True), push(world, env=EVIL)
    forge(world, good, forged)
    code, answer = verify(capsys, world)
    assert (code, answer["signature"]["signed"]) == (1, False)
    assert FORGERIES[forge] in answer["problems"][0]
    code, row = pull(capsys, f"http://{world.registry.repository}:{world.alias}")
    assert (code, row["status"]) == (1, "failed")
    assert FORGERIES[forge] in row["error"]


def test_an_image_under_the_tag_of_another_is_refused(world, capsys):
    world.registry.put_manifest(push(world, "old", signed=True), world.alias)
    code, answer = verify(capsys, world)
    assert code == 1
    assert f"the signature is for the tag old, not for {world.alias}" in answer["problems"][0]
    assert verify(capsys, world, "old")[0] == 0


def test_a_signature_with_a_key_is_none_of_the_identity(world, capsys, tmp_path):
    manifest = push(world)
    release_signers.make_key_pair(tmp_path / "a.key", tmp_path / "a.pub", None)
    key = release_signers.load_signing_key(tmp_path / "a.key")
    signatures.sign_name(world.registry, f"{world.registry.repository}:{world.alias}", manifest.descriptor.digest, key)
    code, answer = verify(capsys, world)
    assert (code, answer["signature"]["signed"]) == (1, False)


def test_without_an_identity_in_the_matrix_a_bundle_proves_nothing(world, capsys):
    push(world, signed=True)
    matrix = world.root / "matrix.yaml"
    matrix.write_text(re.sub(r"identity: \{[^}]*\}, ", "", matrix.read_text()))
    assert main.main(["publish", "--verify", f"http://{world.registry.repository}:{world.alias}"]) == 0
    assert "unsigned: it has a signature" in capsys.readouterr().out
