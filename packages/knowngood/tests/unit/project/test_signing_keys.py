"""Keys: made once, encrypted, readable by others only in their public half; and which one a command takes."""

from __future__ import annotations

import json
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from knowngood.cli import main
from knowngood.core.errors import InputError, MissingError, UsageError
from knowngood.project import release_signers
from samples import MATRIX, parsed

PASSPHRASE = "correct-horse-battery"


@pytest.fixture(autouse=True)
def _no_passphrase(monkeypatch):
    for name in ("PASSPHRASE", "PASSPHRASE_FILE", "SIGNING_KEY"):
        monkeypatch.delenv(getattr(release_signers, f"{name}_VARIABLE"), raising=False)


@pytest.fixture
def pair(tmp_path):
    """The files of a key without a passphrase."""
    paths = tmp_path / "a.key", tmp_path / "a.pub"
    release_signers.make_key_pair(*paths, None)
    return paths


def public_pem(key) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class TestMake:
    @pytest.mark.usefixtures("home")
    def test_the_command_writes_an_encrypted_key(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setenv(release_signers.PASSPHRASE_VARIABLE, PASSPHRASE)
        private = tmp_path / "keys/release.key"
        assert main.main(["keys", "make", str(private), "--json"]) == 0
        out = capsys.readouterr()
        document = json.loads(out.out)
        assert document["encrypted"] is True
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        assert b"BEGIN ENCRYPTED PRIVATE KEY" in private.read_bytes()
        assert PASSPHRASE not in out.out + out.err
        public = (tmp_path / "keys/release.pub").read_bytes()
        assert public.startswith(b"-----BEGIN PUBLIC KEY-----")
        key = release_signers.load_signing_key(private)
        assert key.verification_key.pem == public
        assert key.verification_key.fingerprint == document["fingerprint"]

    @pytest.mark.usefixtures("home")
    def test_a_key_is_never_overwritten(self, tmp_path, capsys):
        words = ["keys", "make", str(tmp_path / "a.key"), "--no-passphrase"]
        assert main.main(words) == 0
        before = (tmp_path / "a.key").read_bytes()
        assert main.main(words) == 2
        assert "is never overwritten" in capsys.readouterr().err
        assert (tmp_path / "a.key").read_bytes() == before

    def test_a_private_key_does_not_lie_in_the_project(self, home, capsys):
        assert main.main(["keys", "make", "release.key", "--no-passphrase"]) == 2
        assert "may be committed" in capsys.readouterr().err
        assert not (home.root / "release.key").exists()

    @pytest.mark.usefixtures("home")
    def test_without_a_passphrase_or_a_terminal_nothing_is_written(self, tmp_path, capsys):
        assert main.main(["keys", "make", str(tmp_path / "a.key")]) == 4
        assert release_signers.PASSPHRASE_FILE_VARIABLE in capsys.readouterr().err
        assert not (tmp_path / "a.key").exists()


class TestPassphrase:
    def test_it_comes_from_a_file(self, tmp_path, monkeypatch):
        (tmp_path / "secret").write_text(f"{PASSPHRASE}\nnot this line\n")
        monkeypatch.setenv(release_signers.PASSPHRASE_FILE_VARIABLE, str(tmp_path / "secret"))
        assert release_signers.read_passphrase("it") == PASSPHRASE.encode()

    def test_a_wrong_one_is_a_sentence_without_it(self, tmp_path, monkeypatch):
        path = tmp_path / "a.key"
        release_signers.make_key_pair(path, tmp_path / "a.pub", PASSPHRASE.encode())
        monkeypatch.setenv(release_signers.PASSPHRASE_VARIABLE, "another-one")
        with pytest.raises(UsageError, match="the passphrase is not that of the key") as caught:
            release_signers.load_signing_key(path)
        assert "another-one" not in str(caught.value)

    def test_the_terminal_is_asked_twice_for_a_new_one(self, monkeypatch):
        answers = iter(["one", "two"])
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("getpass.getpass", lambda *_, **__: next(answers))
        with pytest.raises(UsageError, match="differ"):
            release_signers.read_passphrase("it", confirm=True)


class TestReading:
    def test_a_signature_holds_for_its_bytes_and_its_key(self, pair, tmp_path):
        key = release_signers.load_signing_key(pair[0])
        signature = key.sign_bytes(b"data")
        assert key.verification_key.accepts(signature, b"data")
        assert not key.verification_key.accepts(signature, b"date")
        assert not key.verification_key.accepts(b"", b"data")
        other = release_signers.make_key_pair(tmp_path / "b.key", tmp_path / "b.pub", None)
        assert not other.accepts(signature, b"data")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is not a public key in PEM"),
            (b"\xff" * 100, "is not a public key in PEM"),
            (public_pem(ec.generate_private_key(ec.SECP384R1())), "is not a key on the curve P-256"),
            (public_pem(ed25519.Ed25519PrivateKey.generate()), "is not a key on the curve P-256"),
            (b"x" * (1 << 17), "is too large"),
        ],
    )
    def test_what_is_no_public_key_is_a_usage_error(self, tmp_path, content, message):
        (tmp_path / "k.pub").write_bytes(content)
        with pytest.raises(UsageError, match=message):
            release_signers.load_verification_keys(tmp_path, ["k.pub"])

    def test_the_private_key_is_not_taken_for_the_public_one(self, pair, tmp_path):
        with pytest.raises(UsageError, match="this is a private key, name the public one"):
            release_signers.load_verification_keys(tmp_path, [pair[0].name])

    def test_cosigns_own_form_is_named(self, tmp_path):
        (tmp_path / "c.key").write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n")
        with pytest.raises(UsageError, match="in cosign's own form"):
            release_signers.load_signing_key(tmp_path / "c.key")


class TestChoice:
    def test_no_key_is_needed_where_none_is_named(self):
        assert release_signers.find_signing_key(None, []) is None

    def test_a_named_key_needs_its_private_half(self, pair, tmp_path):
        named = release_signers.load_verification_keys(tmp_path, [pair[1].name])
        with pytest.raises(MissingError, match=r"matrix.yaml names the key a.pub, .* --key or KNOWNGOOD_SIGNING_KEY"):
            release_signers.find_signing_key(None, named)
        release_signers.make_key_pair(tmp_path / "b.key", tmp_path / "b.pub", None)
        with pytest.raises(UsageError, match=r"belongs to none of the keys that matrix.yaml names: a\.pub"):
            release_signers.find_signing_key(str(tmp_path / "b.key"), named)

    def test_the_variable_names_the_file(self, pair, tmp_path, monkeypatch):
        named = release_signers.load_verification_keys(tmp_path, [pair[1].name])
        monkeypatch.setenv(release_signers.SIGNING_KEY_VARIABLE, str(pair[0]))
        key = release_signers.find_signing_key(None, named)
        assert key is not None
        assert key.verification_key.fingerprint == named[0].fingerprint


class TestMatrix:
    def test_the_section_names_one_key_or_several(self):
        policy = parsed(f"publish: {{key: keys/a.pub, repository: registry.example/x}}\n{MATRIX}").publish
        assert (policy.keys, policy.repository) == (("keys/a.pub",), "registry.example/x")
        assert parsed(f"publish: {{key: [a.pub, b.pub]}}\n{MATRIX}").publish.keys == ("a.pub", "b.pub")
        assert parsed().publish.keys == ()

    @pytest.mark.parametrize("path", ["/etc/a.pub", "../a.pub", "a/../b.pub", "''"])
    def test_a_key_is_a_file_of_the_project(self, path):
        with pytest.raises(InputError, match=r"is not written like keys/release.pub"):
            parsed(f"publish: {{key: {path}}}\n{MATRIX}")

    def test_show_prints_the_keys_of_the_matrix(self, home, pair, capsys):
        assert main.main(["keys", "show"]) == 0
        assert "matrix.yaml names no key: what is published from here is unsigned" in capsys.readouterr().out
        (home.root / "a.pub").write_bytes(pair[1].read_bytes())
        (home.root / "matrix.yaml").write_text(f"publish: {{key: a.pub}}\n{MATRIX}")
        assert main.main(["keys", "show", "--json"]) == 0
        (key,) = json.loads(capsys.readouterr().out)["keys"]
        assert key["file"] == "a.pub"
        assert len(key["fingerprint"]) == 64
        (home.root / "a.pub").unlink()
        assert main.main(["keys", "show"]) == 2
        assert "a.pub does not exist" in capsys.readouterr().err
