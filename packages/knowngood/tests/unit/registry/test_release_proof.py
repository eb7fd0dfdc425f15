"""The least tier that matrix.yaml wants of a published image, and the tier that is attached to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import sigstore_server
from knowngood.cli import main
from knowngood.core.cell import parse_cell
from knowngood.core.errors import InputError, KnowngoodError
from knowngood.core.publish_policy import PublishPolicy
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace, Tier
from knowngood.lock.debian_lock import DebianPackage, PackagesLock
from knowngood.project import release_seal, release_signers
from knowngood.registry import (
    attachments,
    image_release,
    publication,
    publication_check,
    signatures,
    signed_documents,
    suite_artifact,
)
from knowngood.registry.attachments import Attachment
from knowngood.registry.content_inspection import ContentInspector, InspectionDepth
from knowngood.registry.image_reference import immutable_tag
from knowngood.registry.image_release import ReleaseProof, read_release_proof
from knowngood.registry.provenance import PREDICATE_TYPE
from memory_registry import DIGEST, IMAGE, MemoryRegistry
from samples import FA0, MATRIX, parsed, with_

CELL = parse_cell(FA0)


def run(hour: int, *, where=RunPlace.CONTAINER_CPU, ok=True, outcome="pass", quick=False, gpu="sm_90") -> Evidence:
    sm = gpu if where is RunPlace.CONTAINER_GPU else None
    report = {
        "verdict": {"ok": ok, "domain": "none" if ok else "image", "text": ""},
        "suite_hash": "5" * 64,
        "environment": {"sm": sm, "gpu": sm and "NVIDIA H100"},
        "checks": [{"setting": "sdpa", "outcome": outcome, "topic": "training", "id": "x"}],
    }
    when = f"2026-11-21T{hour}:00:00+00:00"
    command = ("pytest", "--quick") if quick else ("pytest",)
    return Evidence(cell=FA0, where=where, image=DIGEST, when=when, node={}, command=command, report=report)


@pytest.fixture
def proof_of(home) -> Callable[..., ReleaseProof]:
    """A function that stores runs of the image and returns what they prove."""

    def store(*runs: Evidence) -> ReleaseProof:
        for item in runs:
            run_evidence.store_evidence(item, home.evidence)
        return read_release_proof(home, CELL, DIGEST)

    return store


@pytest.mark.parametrize(
    ("item", "tier", "words"),
    [
        (run(10), Tier.TRAINS_ON_CPU, "Unseen on a GPU: the suite trained a small model in this image on a CPU only."),
        (run(10, where=RunPlace.CONTAINER_GPU), Tier.TRAINS_ON_GPU, "trained a small model in this image on a GPU."),
        (run(10, where=RunPlace.CONTAINER_GPU, gpu="sm_80"), Tier.TRAINS_ON_CPU, "Unseen on a GPU"),
        (run(10, outcome="refused"), Tier.BUILT, "Unseen on a GPU: no run has observed this image training"),
    ],
)
def test_the_document_says_the_tier_and_what_it_means(proof_of, item, tier, words):
    document = proof_of(item).document()
    assert (document["tier"], document["image"], document["cell"], document["gpu"]) == (str(tier), DIGEST, FA0, "sm_90")
    assert document["unseen_on_gpu"] is (tier is not Tier.TRAINS_ON_GPU)
    assert words in document["meaning"]
    assert document["run"]["when"] == item.when


def test_further_runs_that_say_the_same_change_no_document(proof_of):
    first = proof_of(run(10, quick=True), run(11))
    assert first.document()["run"]["when"] == "2026-11-21T11:00:00+00:00", "the whole suite proves more"
    again = proof_of(run(12), run(13, quick=True))
    assert again.newest.when > first.newest.when
    assert [item.data for item in again.attachments()] == [item.data for item in first.attachments()]


def test_a_red_run_takes_back_what_older_runs_proved(proof_of):
    assert proof_of(run(10, where=RunPlace.CONTAINER_GPU)).tier is Tier.TRAINS_ON_GPU
    with pytest.raises(KnowngoodError, match=r"the newest run of .* failed"):
        proof_of(run(11, ok=False))
    assert proof_of(run(12)).tier is Tier.TRAINS_ON_CPU


@pytest.mark.parametrize(
    ("policy", "least"),
    [
        (PublishPolicy(), None),
        (PublishPolicy(tier="trains-on-cpu"), None),
        (PublishPolicy(tier="trains-on-gpu", gpus={"sm_90": "trains-on-cpu"}), None),
        (PublishPolicy(gpus={"sm_80": "trains-on-gpu"}), None),
        (PublishPolicy(tier="trains-on-gpu"), "trains-on-gpu"),
        (PublishPolicy(gpus={"sm_90": "trains-on-gpu"}), "trains-on-gpu"),
    ],
)
def test_the_least_tier_is_that_of_the_gpu_else_the_overall_one(proof_of, policy, least):
    proof = proof_of(run(10))
    if least is None:
        proof.require_tier(policy)
        return
    with pytest.raises(KnowngoodError, match=rf"unseen on a GPU\), and matrix.yaml .* sm_90 from {least} on") as caught:
        proof.require_tier(policy)
    assert f"knowngood smoke --gpus '{FA0}'" in str(caught.value)
    proof_of(run(11, where=RunPlace.CONTAINER_GPU)).require_tier(policy)


def attach(registry, proof: ReleaseProof) -> list[str]:
    """Attach what is missing of a proof, as `publish` does, and return the names."""
    inspector = ContentInspector(registry=registry, depth=InspectionDepth.SIZE, notify=print)
    present = attachments.inspect_documents(inspector, DIGEST)
    attached = attachments.restore_documents(inspector, IMAGE.descriptor, proof.attachments(), present)
    return [item.name for item in attached]


def test_the_tier_is_attached_once_and_again_when_it_rises(proof_of):
    registry = MemoryRegistry()
    assert attach(registry, proof_of(run(10))) == ["evidence-2026-11-21-555555555555.json", "tier.json"]
    registry.puts.clear()
    assert attach(registry, proof_of(run(11))) == []
    assert registry.puts == []
    raised = proof_of(run(12, where=RunPlace.CONTAINER_GPU))
    assert len(attach(registry, raised)) == 2
    assert [item["tier"] for item in registry.documents(attachments.TIER_MEDIA_TYPE)] == [
        "trains-on-cpu",
        "trains-on-gpu",
    ]


def test_verify_prints_the_tier_in_words(proof_of):
    attached = proof_of(run(10)).attachments()
    image = publication_check.PublishedImage(
        name="x", digest=DIGEST, size=1, labels={}, attached=attached, problems=(), recorded={}
    )
    assert "\n  trains-on-cpu: Unseen on a GPU: the suite trained" in image.text()


@pytest.fixture
def registry(home, lock_of, monkeypatch):
    """The registry of the command `publish`, which has the image of FA0 under its tag; `aliases` were moved there.

    The image's SBOM and provenance are attached to it.
    """
    folder = home.root / "docker/bases/debian12"
    folder.mkdir(parents=True)
    tool = DebianPackage(name="g++", version="4:12.2.0-3", arch="amd64", sha256="2" * 64)
    base = PackagesLock(
        suite="bookworm", epoch=1, requested=("g++",), tools=(), packages=(tool,), digest="sha256:" + "b" * 64
    )
    (folder / "packages.lock").write_text(str(base))
    locked = lock_of(FA0)
    memory = MemoryRegistry()
    memory.aliases = []
    memory.manifests[immutable_tag(FA0, locked.digest)] = IMAGE
    earlier = [
        Attachment(media=media, name="x", data=b"{}")
        for media in (attachments.SBOM_MEDIA_TYPE, attachments.PROVENANCE_MEDIA_TYPE)
    ]
    attachments.attach_documents(memory, IMAGE.descriptor, earlier)
    memory.puts.clear()
    monkeypatch.setattr("knowngood.cli.publish.Registry", lambda *_, **__: memory)
    monkeypatch.setattr(image_release, "recorded_digest", lambda *_, **__: DIGEST)
    monkeypatch.setattr(publication, "move_alias", lambda _, alias, __: memory.aliases.append(alias) or True)
    return memory


def publish(home, capsys, section: str, *words: str):
    alias = MATRIX.partition("default: ")[2].partition("\n")[0]
    (home.root / "matrix.yaml").write_text(with_((alias, FA0), ("floors:", f"{section}floors:")))
    code = main.main(["publish", FA0, "--to", "registry.example/team/images", "--json", *words])
    document = json.loads(capsys.readouterr().out)
    return code, document["cells"][0], document["aliases"]


def test_an_image_in_the_registry_gets_its_tier_attached(home, capsys, registry, proof_of):
    proof_of(run(10))
    code, row, aliases = publish(home, capsys, "", "--dry-run")
    assert (code, row["status"], row["tier"], registry.puts) == (0, "would be repaired", "trains-on-cpu", [])
    suite, *proof = [item.split()[0] for item in row["faults"]]
    assert suite.startswith("smoke-suite-")
    assert proof == ["evidence-2026-11-21-555555555555.json", "tier.json"]
    assert aliases
    code, row, _ = publish(home, capsys, "")
    assert (code, row["status"], row["attached"][-1]) == (0, "repaired", "tier.json")
    assert registry.aliases == ["default"]
    code, row, _ = publish(home, capsys, "")
    assert (code, row["status"], row["attached"]) == (0, "unchanged", [])
    assert row["looked_at"] == {"depth": "presence and size", "blobs": 3, "documents": 5}
    proof_of(run(11, where=RunPlace.CONTAINER_GPU))
    code, row, _ = publish(home, capsys, "")
    assert (code, row["status"], len(row["attached"])) == (0, "unchanged", 2), "a higher tier is no damage"


def test_an_image_in_the_registry_below_the_least_tier_gets_no_alias(home, capsys, registry, proof_of):
    proof_of(run(10))
    section = "publish: {tier: trains-on-cpu, gpus: {sm_90: trains-on-gpu}}\n"
    code, row, aliases = publish(home, capsys, section)
    assert (code, row["status"], row["tier"], aliases) == (1, "failed", "trains-on-cpu", {})
    assert "matrix.yaml publishes images for sm_90 from trains-on-gpu on" in row["error"]
    assert (registry.aliases, registry.puts) == ([], [])
    proof_of(run(11, where=RunPlace.CONTAINER_GPU))
    code, row, _ = publish(home, capsys, section)
    assert (code, row["tier"], registry.aliases) == (0, "trains-on-gpu", ["default"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "publish: {tier: trains}",
            "1:17: publish.tier must be 'built', 'trains-emulated', 'trains-on-cpu' or 'trains-on-gpu'",
        ),
        ("publish: {gpus: {sm_90: none}}", "1:25: publish.gpus.sm_90 must be 'built', 'trains-emulated', "),
        ("publish: {gpus: {sm90: built}}", "1:18: 'sm90' is not written like sm_90"),
        ("publish: {gpus: {sm_91: built}}", "1:18: 'sm_91' is not in gpus; the nearest there is sm_90"),
        ("publish: {teir: built}", "1:11: unknown key 'teir'; did you mean 'tier'?"),
        ("publish: built", "1:10: publish must be a mapping (KEY: VALUE lines)"),
    ],
)
def test_a_malformed_policy_is_reported_at_its_place(line, message):
    with pytest.raises(InputError) as caught:
        parsed(f"{line}\n{MATRIX}")
    (text,) = str(caught.value).splitlines()
    assert text.startswith(f"matrix.yaml:{message}")


def test_without_the_section_every_good_run_is_enough():
    assert parsed().publish.least_tier(CELL) == "built"
    policy = parsed(f"publish: {{tier: trains-on-cpu, gpus: {{sm_100: trains-on-gpu}}}}\n{MATRIX}").publish
    assert policy.least_tier(CELL) == "trains-on-cpu"
    assert policy.gpus == {"sm_100": "trains-on-gpu"}


@pytest.fixture
def key(home, tmp_path, monkeypatch):
    """A key that matrix.yaml names, with `publish: {key: a.pub}`."""
    monkeypatch.delenv(release_signers.SIGNING_KEY_VARIABLE, raising=False)
    release_signers.make_key_pair(tmp_path / "a.key", home.root / "a.pub", None)
    return release_signers.load_signing_key(tmp_path / "a.key")


SECTION = "publish: {key: a.pub}\n"


def publish_signed(home, capsys, key, *words: str):
    release_seal.write_release_seal(home.root, key)
    return publish(home, capsys, SECTION, "--key", key.name, *words)


def signers(registry, key, tag=None):
    return signatures.judge_image_signature(registry, DIGEST, tag, [key.verification_key])


@pytest.mark.usefixtures("registry")
def test_a_published_image_without_signature_is_signed_by_its_record(home, proof_of, key, capsys, monkeypatch):
    proof_of(run(10))
    asked = []
    monkeypatch.setattr("knowngood.cli.publish.container_engine.ensure_engine", lambda **_options: asked.append(True))
    code, row, _ = publish_signed(home, capsys, key)
    assert (code, row["digest"], row["signed"], asked) == (0, DIGEST, True, [])


def test_publish_signs_an_image_its_proof_and_its_aliases(home, capsys, registry, proof_of, key):
    proof_of(run(10))
    signatures.sign_name(registry, f"{registry.repository}:old", DIGEST, key)
    code, row, aliases = publish_signed(home, capsys, key)
    assert (code, row["signed"], list(aliases)) == (0, True, ["default"])
    assert signers(registry, key, row["tag"]).problems == ()
    assert signers(registry, key, "default").problems == ()
    assert "is for the tag" in signers(registry, key, "another").problems[0]
    documents = attachments.fetch_attachments(registry, DIGEST)
    judgement = signatures.judge_signatures(registry, IMAGE.descriptor, None, documents, [key.verification_key])
    suite, proof = suite_artifact.suite_attachment(home.suite), proof_of(run(10)).attachments()
    assert {item.name for item in judgement.signed} == {suite.name, *(item.name for item in proof)}
    registry.puts.clear()
    assert publish_signed(home, capsys, key)[0] == 0
    assert registry.puts == [], "what is signed already is not signed again"


OTHER = "sha256:" + "e" * 64


def test_a_signature_of_another_image_does_not_count(registry, key):
    signatures.sign_name(registry, f"{registry.repository}:default", OTHER, key)
    kept = signed_documents.signature_tag(OTHER)
    registry.manifests[signed_documents.signature_tag(DIGEST)] = registry.manifests[kept]
    for tag in (None, "default"):
        judgement = signers(registry, key, tag)
        assert (judgement.signer, judgement.present) == (None, True)
        assert f"the signature is of {OTHER}, another image" in judgement.problems[0]
    assert not signatures.is_image_signed(registry, DIGEST, [key.verification_key])
    assert signatures.sign_name(registry, f"{registry.repository}:default", DIGEST, key), "it is signed all the same"
    assert signers(registry, key, "default").problems == ()


def test_an_attestation_of_another_image_does_not_count(registry, key):
    statement = {"predicateType": PREDICATE_TYPE, "subject": [{"name": "x", "digest": {"sha256": "e" * 64}}]}
    other = Attachment(media=attachments.PROVENANCE_MEDIA_TYPE, name="x", data=json.dumps(statement).encode())
    signatures._attest(registry, DIGEST, other, key)
    signatures.sign_name(registry, f"{registry.repository}:default", DIGEST, key)
    judgement = signatures.judge_signatures(registry, IMAGE.descriptor, "default", [], [key.verification_key])
    assert judgement.signer is not None
    assert "not of this image" in judgement.problems[0]


def test_a_new_key_signs_what_the_old_one_signed(home, capsys, registry, proof_of, key):
    proof_of(run(10))
    signatures.sign_name(registry, f"{registry.repository}:old", DIGEST, key)
    publish_signed(home, capsys, key)
    file = Path(key.name).with_name("b.key")
    release_signers.make_key_pair(file, home.root / "b.pub", None)
    new = release_signers.load_signing_key(file)
    release_seal.write_release_seal(home.root, new)
    code, row, _ = publish(home, capsys, "publish: {key: [b.pub, a.pub]}\n", "--key", new.name)
    assert (code, row["signed"]) == (0, True)
    assert signers(registry, new, row["tag"]).problems == ()
    assert signers(registry, new, "default").problems == ()


@pytest.mark.usefixtures("key")
def test_publish_without_the_named_key_does_nothing(home, capsys, registry, proof_of):
    proof_of(run(10))
    (home.root / "matrix.yaml").write_text(with_(("floors:", f"{SECTION}floors:")))
    assert main.main(["publish", FA0, "--to", "registry.example/team/images"]) == 4
    assert "matrix.yaml names the key a.pub" in capsys.readouterr().err
    assert registry.puts == []


def test_publish_refuses_a_run_that_the_seal_does_not_cover(home, capsys, registry, proof_of, key):
    release_seal.write_release_seal(home.root, key)
    proof_of(run(10))
    signatures.sign_name(registry, f"{registry.repository}:old", DIGEST, key)
    code, row, aliases = publish(home, capsys, SECTION, "--key", key.name)
    assert (code, row["status"], aliases) == (1, "failed", {})
    assert "unsigned: seal.json does not cover this run" in row["error"]


def test_without_a_key_publish_says_unsigned(home, capsys, registry, proof_of):
    proof_of(run(10))
    code, row, _ = publish(home, capsys, "")
    assert (code, row["signed"]) == (0, False)
    assert main.main(["publish", FA0, "--to", "registry.example/team/images"]) == 0
    assert " unsigned " in capsys.readouterr().out
    assert not [name for name in registry.puts if name.endswith((".sig", ".att"))]


JOB = "https://gitlab.example/team/images//.gitlab-ci.yml@refs/heads/main"
IDENTITY = f"publish: {{identity: {{issuer: '{sigstore_server.ISSUER}', subject: '{JOB}', trust: trust.json}}}}\n"


@pytest.fixture
def sigstore(home, monkeypatch):
    """A sigstore that certifies the identity of this CI job; matrix.yaml names it with `IDENTITY`."""
    for name in ("GITHUB_ACTIONS", "BUILDKITE", "CIRCLECI", release_signers.SIGNING_KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.make_token(JOB))
    world = sigstore_server.Sigstore()
    (home.root / "trust.json").write_text(world.trust())
    yield world
    world.close()


def test_publish_in_ci_signs_with_the_jobs_identity(home, capsys, registry, proof_of, sigstore):
    proof_of(run(10))
    code, row, aliases = publish(home, capsys, IDENTITY)
    assert (code, row["signed"], list(aliases)) == (0, True, ["default"])
    verifiers = release_signers.load_release_verifiers(home.root, parsed(f"{IDENTITY}{MATRIX}").publish)
    for tag in (row["tag"], "default"):
        judgement = signatures.judge_image_signature(registry, DIGEST, tag, verifiers)
        assert judgement.problems == ()
        assert judgement.document() == {
            "signed": True,
            "key": None,
            "identity": {"issuer": sigstore_server.ISSUER, "subject": JOB},
            "required": [f"the identity {JOB} of {sigstore_server.ISSUER}"],
        }
    assert "is for the tag" in signatures.judge_image_signature(registry, DIGEST, "another", verifiers).problems[0]
    documents = attachments.fetch_attachments(registry, DIGEST)
    judgement = signatures.judge_signatures(registry, IMAGE.descriptor, None, documents, verifiers)
    assert judgement.problems == (), "the provenance is signed as an attestation"
    media = {attachments.SBOM_MEDIA_TYPE, attachments.PROVENANCE_MEDIA_TYPE, *attachments.PROOF_MEDIA_TYPES}
    assert {item.media for item in judgement.signed} == media

    registry.puts.clear()
    sigstore.requests.clear()
    assert publish(home, capsys, IDENTITY)[0] == 0
    assert (registry.puts, sigstore.requests) == ([], []), "what is signed already is not signed again"


@pytest.mark.usefixtures("sigstore")
def test_publish_without_the_named_identity_does_nothing(home, capsys, registry, monkeypatch):
    (home.root / "matrix.yaml").write_text(with_(("floors:", f"{IDENTITY}floors:")))
    monkeypatch.delenv("GITLAB_CI")
    assert main.main(["publish", FA0, "--to", "registry.example/team/images"]) == 4
    assert "CI offers no identity here" in capsys.readouterr().err
    assert registry.puts == []
