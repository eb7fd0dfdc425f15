"""The keys of a project: ECDSA on P-256 with SHA-256, the kind that cosign, skopeo and podman verify.

A public key is a file in PEM (`BEGIN PUBLIC KEY`). A private key is PKCS#8 in PEM, encrypted with a passphrase that
comes from the environment, from a file or from the terminal, and is printed nowhere.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.errors import KnowngoodError, MissingError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

SIGNING_KEY_VARIABLE = "KNOWNGOOD_SIGNING_KEY"
"""Names the file of the private key."""
PASSPHRASE_VARIABLE = "KNOWNGOOD_KEY_PASSPHRASE"  # noqa: S105 - the name of a variable
PASSPHRASE_FILE_VARIABLE = "KNOWNGOOD_KEY_PASSPHRASE_FILE"  # noqa: S105 - the name of a variable
_LARGEST_KEY_FILE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class VerificationKey:
    """A public key, and the name of its file for messages."""

    name: str
    pem: bytes

    @cached_property
    def _public(self) -> EllipticCurvePublicKey:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            key = serialization.load_pem_public_key(self.pem)
        except (ValueError, UnsupportedAlgorithm):
            hint = "; this is a private key, name the public one" if b"PRIVATE KEY" in self.pem else ""
            raise UsageError(f"{self.name} is not a public key in PEM (BEGIN PUBLIC KEY){hint}") from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise UsageError(f"{self.name} is not a key on the curve P-256; `knowngood keys make` makes one")
        return key

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the key in DER, in hexadecimal; `UsageError` when the file holds no key on P-256."""
        from cryptography.hazmat.primitives import serialization

        public_format = serialization.PublicFormat.SubjectPublicKeyInfo
        return hashlib.sha256(self._public.public_bytes(serialization.Encoding.DER, public_format)).hexdigest()

    def accepts(self, signature: bytes, data: bytes) -> bool:
        """Return whether `signature` (ASN.1 DER) was made over these bytes with this key's private half."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            self._public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class SigningKey:
    """A private key that is ready to sign."""

    name: str
    _private: EllipticCurvePrivateKey

    @cached_property
    def verification_key(self) -> VerificationKey:
        """The public half of the key."""
        return VerificationKey(name=self.name, pem=_public_pem(self._private))

    def sign_bytes(self, data: bytes) -> bytes:
        """Return a signature over these bytes, in ASN.1 DER."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        return self._private.sign(data, ec.ECDSA(hashes.SHA256()))


def make_key_pair(private: Path, public: Path, passphrase: bytes | None) -> VerificationKey:
    """Write a new pair of keys and return the public one; the private file is readable by its owner only.

    Without a passphrase the private key is written as it is. Raises `UsageError` when one of the files exists.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    for path in (private, public):
        if path.exists():
            raise UsageError(f"{path} exists, and a key is never overwritten; name another file")
    key = ec.generate_private_key(ec.SECP256R1())
    protection: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    )
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
    private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    public.parent.mkdir(parents=True, exist_ok=True)
    public.write_bytes(_public_pem(key))
    return VerificationKey(name=str(public), pem=_public_pem(key))


def load_verification_keys(root: Path, names: Iterable[str]) -> tuple[VerificationKey, ...]:
    """Read the public keys that matrix.yaml names, with paths below `root`.

    Raises `UsageError` when a file is missing or holds no key on P-256.
    """
    keys = tuple(VerificationKey(name=name, pem=_read_key_file(root / name, "the public key")) for name in names)
    for key in keys:
        _ = key.fingerprint
    return keys


def load_signing_key(path: Path) -> SigningKey:
    """Read a private key; the passphrase of an encrypted one is taken from `read_passphrase`.

    Raises:
        UsageError: the file is missing, holds no private key on P-256, or the passphrase is another one.
        MissingError: the key is encrypted, and there is neither a passphrase nor a terminal.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pem = _read_key_file(path, "the private key")
    if b"SIGSTORE PRIVATE KEY" in pem or b"COSIGN PRIVATE KEY" in pem:
        raise UsageError(f"{path} is a private key in cosign's own form; use one that `knowngood keys make` makes")
    passphrase = read_passphrase(f"the passphrase of {path}") if b"ENCRYPTED" in pem else None
    try:
        key = serialization.load_pem_private_key(pem, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        reason = "the passphrase is not that of the key" if passphrase else "it is not a private key in PEM (PKCS#8)"
        raise UsageError(f"{path} cannot be read: {reason}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError(f"{path} is not a key on the curve P-256; `knowngood keys make` makes one")
    return SigningKey(name=str(path), _private=key)


def find_signing_key(path: str | None, named: Iterable[VerificationKey]) -> SigningKey | None:
    """Return the private key in the file `path`, else in that of `KNOWNGOOD_SIGNING_KEY`, else `None`.

    `named` are the public keys that matrix.yaml names.

    Raises:
        MissingError: keys are named, and there is no private one.
        UsageError: keys are named, and the private one belongs to none of them.
    """
    known = {key.fingerprint: key.name for key in named}
    file = path or os.environ.get(SIGNING_KEY_VARIABLE)
    if not file:
        if known:
            raise MissingError(
                f"matrix.yaml names the key {', '.join(known.values())}, and there is no private key to sign with; "
                f"name its file with --key or {SIGNING_KEY_VARIABLE}"
            )
        return None
    key = load_signing_key(Path(file))
    if known and key.verification_key.fingerprint not in known:
        raise UsageError(f"{file} belongs to none of the keys that matrix.yaml names: {', '.join(known.values())}")
    return key


def read_passphrase(purpose: str, *, confirm: bool = False) -> bytes:
    """Return the passphrase from the environment, from the file that it names, or from the terminal.

    `purpose` is what the terminal asks for; with `confirm` it asks twice. Raises `MissingError` without any of them.
    """
    if text := os.environ.get(PASSPHRASE_VARIABLE):
        return text.encode()
    if file := os.environ.get(PASSPHRASE_FILE_VARIABLE):
        data = _read_key_file(Path(file), "the file with the passphrase").split(b"\n")[0].removesuffix(b"\r")
        if not data:
            raise UsageError(f"{file} has no passphrase in its first line")
        return data
    if not sys.stdin.isatty():
        raise MissingError(
            f"{purpose} is needed, and there is no terminal to ask; "
            f"put it into {PASSPHRASE_VARIABLE}, or into a file that {PASSPHRASE_FILE_VARIABLE} names"
        )
    text = getpass.getpass(f"{purpose}: ", stream=sys.stderr)
    if not text:
        raise UsageError("the passphrase is empty")
    if confirm and getpass.getpass("once more: ", stream=sys.stderr) != text:
        raise UsageError("the two passphrases differ; nothing was written")
    return text.encode()


def _read_key_file(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_KEY_FILE + 1)
    except FileNotFoundError:
        raise UsageError(f"{what} {path} does not exist") from None
    except OSError as error:
        raise KnowngoodError(f"{what} {path} cannot be read: {error.strerror}") from None
    if len(data) > _LARGEST_KEY_FILE:
        raise UsageError(f"{path} is too large to be {what}")
    return data


def _public_pem(private: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    public_format = serialization.PublicFormat.SubjectPublicKeyInfo
    return private.public_key().public_bytes(serialization.Encoding.PEM, public_format)
