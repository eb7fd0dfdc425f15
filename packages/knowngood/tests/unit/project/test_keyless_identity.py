"""Bundles that sigstore's services made, verified without a network; and who signs where CI offers an identity."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
import sys
from pathlib import Path

import pytest

import sigstore_server
from knowngood.cli import main
from knowngood.core.errors import InputError, KnowngoodError, MissingError, NetworkError, UsageError
from knowngood.core.publish_policy import PublishPolicy, SigningIdentity
from knowngood.project import release_signers
from knowngood.registry.signed_documents import SignedName
from samples import MATRIX, parsed

RECORDED = Path(__file__).with_name("recorded_bundles")
BEACON = (
    "https://github.com/sigstore-conformance/extremely-dangerous-public-oidc-beacon/"
    ".github/workflows/extremely-dangerous-oidc-beacon.yml@refs/heads/main"
)
GITHUB = "https://token.actions.githubusercontent.com"
JOB = "https://gitlab.example/team/images//.gitlab-ci.yml@refs/heads/main"
DIGEST = "sha256:" + "d" * 64
STATEMENT = SignedName(reference="registry.example/team/images:default", digest=DIGEST).statement()


@pytest.fixture(autouse=True)
def _no_ci(monkeypatch, tmp_path):
    """The machine that runs the tests may be a CI job itself; and sigstore keeps its keys in the home."""
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", release_signers.SIGNING_KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    release_signers.load_sigstore_trust.cache_clear()


def staging_trust(folder: Path) -> str:
    """Write the services and keys of sigstore's staging, as the package carries them; return the file's name."""
    store = importlib.resources.files("sigstore._store") / "https%3A%2F%2Ftuf-repo-cdn.sigstage.dev"
    document = {
        "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
        "trustedRoot": json.loads((store / "trusted_root.json").read_text()),
        "signingConfig": json.loads((store / "signing_config.v0.2.json").read_text()),
    }
    (folder / "staging.json").write_text(json.dumps(document))
    return "staging.json"


def trusted(folder: Path, subject=BEACON, issuer=GITHUB, trust=None):
    identity = SigningIdentity(issuer=issuer, subject=subject, trust=trust or staging_trust(folder))
    (item,) = release_signers.load_trusted_identities(folder, [identity])
    return item


def recorded(name="provenance") -> bytes:
    return (RECORDED / f"{name}.sigstore.json").read_bytes()


class TestRecorded:
    def test_the_files_are_those_that_were_taken(self):
        rows = re.findall(r"`(\S+)` \| `\S+` \| `([0-9a-f]{64})`", (RECORDED / "README.md").read_text())
        assert {name: hashlib.sha256((RECORDED / name).read_bytes()).hexdigest() for name, _ in rows} == dict(rows)
        assert len(rows) == len(list(RECORDED.glob("*.json"))) == 2

    def test_a_bundle_of_the_identity_gives_its_statement(self, tmp_path):
        statement = json.loads(trusted(tmp_path).verify_bundle(recorded()))
        assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
        assert statement["subject"][0]["digest"]["sha256"].startswith("a0cfc71271d6")

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"subject": BEACON + "x"}, f"is by {BEACON}, does not hold for the identity {BEACON}x of {GITHUB}: "),
            ({"subject": BEACON.replace("main", "mian")}, "SANs do not match"),
            ({"issuer": "https://gitlab.example"}, "OIDCIssuer does not match"),
        ],
    )
    def test_a_bundle_of_another_identity_is_refused(self, tmp_path, change, sentence):
        with pytest.raises(KnowngoodError, match=re.escape(sentence)):
            trusted(tmp_path, **change).verify_bundle(recorded())

    def test_a_statement_about_another_image_is_refused(self, tmp_path):
        document = json.loads(recorded())
        payload = base64.b64decode(document["dsseEnvelope"]["payload"])
        document["dsseEnvelope"]["payload"] = base64.b64encode(payload.replace(b"a0cfc7", b"b0cfc7")).decode()
        with pytest.raises(KnowngoodError, match="DSSE: invalid signature"):
            trusted(tmp_path).verify_bundle(json.dumps(document).encode())

    def test_a_bundle_with_the_proof_of_another_entry_is_refused(self, tmp_path):
        document = json.loads(recorded())
        entry = document["verificationMaterial"]["tlogEntries"][0]
        body = json.loads(base64.b64decode(entry["canonicalizedBody"]))
        body["spec"]["hashedRekordV002"]["data"]["digest"] = base64.b64encode(bytes(32)).decode()
        entry["canonicalizedBody"] = base64.b64encode(json.dumps(body).encode()).decode()
        with pytest.raises(KnowngoodError, match=r"does not hold for .*: invalid log entry: inclusion proof"):
            trusted(tmp_path).verify_bundle(json.dumps(document).encode())

    def test_a_bundle_without_a_time_is_refused(self, tmp_path):
        document = json.loads(recorded())
        document["verificationMaterial"]["timestampVerificationData"] = {"rfc3161Timestamps": []}
        with pytest.raises(KnowngoodError, match="must contain an inclusion promise or signed timestamp"):
            trusted(tmp_path).verify_bundle(json.dumps(document).encode())

    def test_a_bundle_of_a_file_says_nothing_about_an_image(self, tmp_path, monkeypatch):
        """The public sigstore, whose keys cannot be renewed: those of the package are taken."""
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
        subject = "https://github.com/trailofbits/rfc8785.py/.github/workflows/release.yml@refs/tags/v0.1.2"
        identity = SigningIdentity(issuer=GITHUB, subject=subject)
        (item,) = release_signers.load_trusted_identities(tmp_path, [identity])
        with pytest.raises(KnowngoodError, match="DSSE verification on a bundle without a DSSE envelope"):
            item.verify_bundle(recorded("wheel"))

    def test_another_sigstore_does_not_vouch_for_it(self, tmp_path, sigstore):
        (tmp_path / "trust.json").write_text(sigstore.trust())
        with pytest.raises(KnowngoodError, match="does not hold for the identity"):
            trusted(tmp_path, trust="trust.json").verify_bundle(recorded())

    @pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, recorded()[:-40], b'"x"'])
    def test_what_is_no_bundle_is_refused(self, tmp_path, data):
        with pytest.raises(KnowngoodError, match="what should be a bundle of sigstore is none"):
            trusted(tmp_path).verify_bundle(data)

    def test_no_byte_of_a_bundle_can_be_changed_unnoticed(self, tmp_path):
        """Flip bits all over the file: each changed bundle is refused, or states what was signed."""
        item, data = trusted(tmp_path), recorded()
        statement = item.verify_bundle(data)
        refused = 0
        for at in range(0, len(data), 97):
            changed = data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :]
            try:
                assert item.verify_bundle(changed) == statement
            except KnowngoodError:
                refused += 1
        assert refused > 80


@pytest.fixture
def sigstore():
    world = sigstore_server.Sigstore()
    yield world
    world.close()


@pytest.fixture
def job(sigstore, tmp_path, monkeypatch):
    """A CI job with an identity, and matrix.yaml's section that names it."""
    (tmp_path / "trust.json").write_text(sigstore.trust())
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.make_token(JOB))
    return SigningIdentity(issuer=sigstore_server.ISSUER, subject=JOB, trust="trust.json")


class TestSigning:
    def test_a_job_signs_what_its_identity_verifies(self, sigstore, job, tmp_path):
        named = release_signers.load_release_verifiers(tmp_path, PublishPolicy(identities=(job,)))
        signer = release_signers.find_release_signer(None, named)
        bundle = signer.sign_statement(STATEMENT)
        assert named[0].verify_bundle(bundle) == STATEMENT
        assert sigstore.requests == ["/api/v2/signingCert", "/api/v1/log/entries"]

    def test_a_job_with_another_identity_is_refused(self, job, tmp_path, monkeypatch):
        named = release_signers.load_trusted_identities(tmp_path, [job])
        monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.make_token(f"{JOB}-fork"))
        with pytest.raises(UsageError, match=f"{re.escape(JOB)}-fork, does not hold for the identity"):
            release_signers.find_keyless_signer(named).sign_statement(STATEMENT)

    def test_a_job_of_another_issuer_asks_for_no_certificate(self, sigstore, job, tmp_path, monkeypatch):
        named = release_signers.load_trusted_identities(tmp_path, [job])
        monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.make_token(JOB, "https://evil.example"))
        with pytest.raises(UsageError, match=r"is of https://evil\.example, and matrix\.yaml names"):
            release_signers.find_keyless_signer(named).sign_statement(STATEMENT)
        assert sigstore.requests == []

    def test_a_sigstore_that_does_not_answer_is_said_so(self, sigstore, job, tmp_path):
        sigstore.close()
        named = release_signers.load_trusted_identities(tmp_path, [job])
        with pytest.raises(NetworkError, match="sigstore cannot be reached to sign"):
            release_signers.find_keyless_signer(named).sign_statement(STATEMENT)


class TestChoice:
    def test_without_an_identity_publishing_stops(self, job, tmp_path, monkeypatch):
        monkeypatch.delenv("GITLAB_CI")
        named = release_signers.load_release_verifiers(tmp_path, PublishPolicy(identities=(job,)))
        with pytest.raises(MissingError, match=r"CI offers no identity here; publish in the job that has it$"):
            release_signers.find_release_signer(None, named)

    def test_a_job_without_the_permission_is_told(self, job, tmp_path, monkeypatch):
        monkeypatch.delenv("SIGSTORE_ID_TOKEN")
        named = release_signers.load_release_verifiers(tmp_path, PublishPolicy(identities=(job,)))
        with pytest.raises(MissingError, match=r"CI offers this job no identity: .*SIGSTORE_ID_TOKEN"):
            release_signers.find_release_signer(None, named)

    def test_a_key_is_of_no_use_where_only_an_identity_is_named(self, job, tmp_path):
        named = release_signers.load_release_verifiers(tmp_path, PublishPolicy(identities=(job,)))
        with pytest.raises(UsageError, match=r"names an identity and no key, so nobody would accept .* release\.key"):
            release_signers.find_release_signer("release.key", named)

    def test_where_both_are_named_a_private_key_goes_first(self, job, tmp_path):
        release_signers.make_key_pair(tmp_path / "a.key", tmp_path / "a.pub", None)
        named = release_signers.load_release_verifiers(tmp_path, PublishPolicy(keys=("a.pub",), identities=(job,)))
        signer = release_signers.find_release_signer(str(tmp_path / "a.key"), named)
        assert isinstance(signer, release_signers.SigningKey)
        assert isinstance(release_signers.find_release_signer(None, named), release_signers.KeylessSigner)

    def test_without_the_package_its_extra_is_named(self, job, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "sigstore", None)
        with pytest.raises(MissingError, match=r"pip install 'knowngood\[keyless\]'"):
            release_signers.load_release_verifiers(tmp_path, PublishPolicy(identities=(job,)))
        assert release_signers.load_release_verifiers(tmp_path, PublishPolicy()) == ()

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (None, "does not exist"),
            ("{}", "is no trust configuration of sigstore"),
            ("[" * 1000, "is no trust configuration of sigstore"),
        ],
    )
    def test_a_defect_of_the_trust_is_found_at_once(self, tmp_path, content, sentence):
        if content is not None:
            (tmp_path / "trust.json").write_text(content)
        with pytest.raises(UsageError, match=sentence):
            trusted(tmp_path, trust="trust.json")


class TestMatrix:
    def test_an_identity_is_read_from_the_matrix(self):
        section = f"publish: {{identity: {{issuer: '{GITHUB}', subject: '{BEACON}'}}}}\n"
        policy = parsed(f"{section}{MATRIX}").publish
        assert policy.identities == (SigningIdentity(issuer=GITHUB, subject=BEACON),)
        assert parsed().publish.identities == ()

    @pytest.mark.parametrize(
        ("identity", "message"),
        [
            ("{issuer: x, subject: y}", "'x' is not written like https://token"),
            ("{issuer: 'https://x.example'}", "the key 'subject' is missing"),
            ("{issuer: 'https://x.example', subject: y, trust: ../t}", "'../t' is not written like keys/"),
            (
                "{issuer: 'https://x.example', subject: y, email: z}",
                "unknown key 'email'; the keys here are issuer, subject, trust",
            ),
        ],
    )
    def test_a_malformed_identity_is_reported_at_its_place(self, identity, message):
        with pytest.raises(InputError, match=r"matrix.yaml:1:\d+: .*" + re.escape(message)):
            parsed(f"publish: {{identity: {identity}}}\n{MATRIX}")

    def test_keys_show_names_the_identity(self, home, capsys):
        section = f"publish: {{identity: {{issuer: '{GITHUB}', subject: '{BEACON}'}}}}\n"
        (home.root / "matrix.yaml").write_text(section + MATRIX)
        assert main.main(["keys", "show"]) == 0
        assert f"the identity {BEACON} of {GITHUB}" in capsys.readouterr().out
