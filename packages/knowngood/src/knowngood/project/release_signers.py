"""Who signs what is published, and whose signatures count: keys, and identities that CI offers in place of a key.

A key is ECDSA on P-256 with SHA-256, the kind that cosign, skopeo and podman verify. A public key is a file in PEM
(`BEGIN PUBLIC KEY`). A private key is PKCS#8 in PEM, encrypted with a passphrase that comes from the environment, from
a file or from the terminal, and is printed nowhere.

For an identity, sigstore's service Fulcio certifies for ten minutes that a key belongs to it, and its log Rekor records
what was signed in that time. The certificate, the proof of the log and the signature together are a bundle. The
package `sigstore` makes and verifies bundles; it is an extra of this program and imported here only.
"""

from __future__ import annotations

import getpass
import hashlib
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.data_files import read_data_bytes
from knowngood.core.errors import KnowngoodError, MissingError, NetworkError, UsageError
from knowngood.core.publish_policy import PublishPolicy, SigningIdentity

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from sigstore.models import Bundle, ClientTrustConfig
    from sigstore.oidc import IdentityToken

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


STATEMENT_MEDIA_TYPE = "application/vnd.in-toto+json"


@dataclass(frozen=True, kw_only=True)
class SigstoreTrust:
    """The services and keys of a sigstore, by which bundles are made and verified."""

    config: ClientTrustConfig
    renewed: bool
    """False when the public sigstore's keys are those that the package `sigstore` carries, or kept from earlier."""


@dataclass(frozen=True, kw_only=True)
class TrustedIdentity:
    """An identity that may sign what a project publishes."""

    identity: SigningIdentity
    root: Path
    """The folder to which the path of `trust` is relative."""

    @property
    def name(self) -> str:
        """The identity in words, for messages."""
        return self.identity.name

    @cached_property
    def trust(self) -> SigstoreTrust:
        """The sigstore that vouches for the identity; raises as `load_sigstore_trust` does."""
        return load_sigstore_trust(self.root / self.identity.trust if self.identity.trust else None)

    def verify_bundle(self, data: bytes) -> bytes:
        """Return the in-toto statement, as it was signed, in a bundle of this identity.

        The certificate, its issuer and subject, the time, the proof of the log and the signature are verified, all
        without a network. Raises `KnowngoodError` when one of them is not valid.
        """
        from sigstore.errors import Error
        from sigstore.models import Bundle
        from sigstore.verify import Verifier, policy

        verifier = Verifier(trusted_root=self.trust.config.trusted_root)
        wanted = policy.Identity(identity=self.identity.subject, issuer=self.identity.issuer)
        try:
            bundle = Bundle.from_json(data)
        except Exception as error:  # noqa: BLE001 - whatever its parsers raise, the bundle comes from a stranger
            raise KnowngoodError(f"what should be a bundle of sigstore is none: {_first_line(error)}") from None
        try:
            kind, statement = verifier.verify_dsse(bundle, wanted)
        except Error as error:
            signer = _describe_signer(bundle)
            raise KnowngoodError(f"the bundle{signer} does not hold for {self.name}: {_first_line(error)}") from None
        except Exception as error:  # noqa: BLE001 - see above
            raise KnowngoodError(f"the bundle is damaged: {_first_line(error)}") from None
        if kind != STATEMENT_MEDIA_TYPE:
            raise KnowngoodError(f"the bundle signs {kind}, not an in-toto statement")
        return statement


@dataclass(frozen=True, kw_only=True)
class KeylessSigner:
    """The identity that CI offers to this job, to sign with."""

    verifiers: Sequence[TrustedIdentity]
    """The identities that matrix.yaml names; one of them must be this job's."""

    def sign_statement(self, statement: bytes) -> bytes:
        """Return the bundle of an in-toto statement, signed with a certificate for this job alone.

        The credential and the certificate are asked for each time, because both expire within minutes. The statement
        becomes public: Rekor is a public log, unless matrix.yaml names a sigstore of one's own.

        Raises:
            MissingError: CI offers no identity any more.
            NetworkError: Fulcio or Rekor cannot be reached.
            UsageError: the job has another identity than those that matrix.yaml names.
            KnowngoodError: Fulcio or Rekor refuse.
        """
        import requests
        from sigstore.dsse import Statement
        from sigstore.errors import NetworkError as SigstoreNetworkError
        from sigstore.sign import SigningContext

        token = _read_ambient_token()
        if token is None:
            raise MissingError("CI offers no identity any more; run it again")
        issuers = {item.identity.issuer for item in self.verifiers}
        if not {token.issuer, token.federated_issuer} & issuers:
            raise UsageError(
                f"this job's identity is of {token.issuer}, and matrix.yaml names one of {' or '.join(sorted(issuers))}"
            )
        try:
            context = SigningContext.from_trust_config(self.verifiers[0].trust.config)
            with context.signer(token) as signer:
                bundle = signer.sign_dsse(Statement(statement)).to_json().encode()
        except (requests.RequestException, SigstoreNetworkError) as error:
            raise NetworkError(f"sigstore cannot be reached to sign: {_first_line(error)}") from None
        except Exception as error:  # noqa: BLE001 - the library's clients raise exceptions of many private classes
            raise KnowngoodError(f"sigstore did not sign for this job: {_first_line(error)}") from None
        self._check_own_bundle(bundle)
        return bundle

    def _check_own_bundle(self, data: bytes) -> None:
        """Raise `UsageError` when nobody would accept a bundle that this job has just made."""
        reasons = []
        for identity in self.verifiers:
            try:
                identity.verify_bundle(data)
            except KnowngoodError as error:
                reasons.append(str(error))
            else:
                return
        raise UsageError(f"what this job signs is not what matrix.yaml asks for: {'; '.join(reasons)}")


def load_trusted_identities(root: Path, identities: Sequence[SigningIdentity]) -> tuple[TrustedIdentity, ...]:
    """Return the identities that matrix.yaml names, ready to verify with; `root` is the project's folder.

    Raises:
        MissingError: there are some, and the package `sigstore` is not installed.
        UsageError: a file with the services and keys of a sigstore is missing or malformed.
    """
    trusted = tuple(TrustedIdentity(identity=identity, root=root) for identity in identities)
    for item in trusted:
        _require_sigstore()
        if item.identity.trust:
            _ = item.trust
    return trusted


def find_keyless_signer(named: Sequence[TrustedIdentity]) -> KeylessSigner | None:
    """Return what signs with the identity that CI offers to this job, or `None` where it offers none.

    Raises `MissingError` when CI should offer one and the job lacks the permission.
    """
    if not named or _read_ambient_token() is None:
        return None
    return KeylessSigner(verifiers=tuple(named))


@cache
def load_sigstore_trust(file: Path | None) -> SigstoreTrust:
    """Return the services and keys in a file (sigstore's `ClientTrustConfig`), by default of the public sigstore.

    Those of the public one are renewed over the network; where that fails, those of the last time are taken, or those
    that the package `sigstore` carries.

    Raises `UsageError` when the file is missing or malformed, `MissingError` when nothing can be kept in the home.
    """
    from sigstore.errors import Error
    from sigstore.models import ClientTrustConfig

    logging.getLogger("sigstore").setLevel(logging.ERROR)
    if file is not None:
        try:
            config = ClientTrustConfig.from_json(read_data_bytes(file).decode())
            _ = config.trusted_root, config.signing_config
        except FileNotFoundError:
            raise UsageError(f"{file}, the trust of an identity in matrix.yaml, does not exist") from None
        except (Error, ValueError) as error:
            raise UsageError(f"{file} is no trust configuration of sigstore: {_first_line(error)}") from None
        return SigstoreTrust(config=config, renewed=True)
    try:
        return SigstoreTrust(config=ClientTrustConfig.production(), renewed=True)
    except Error:
        return SigstoreTrust(config=ClientTrustConfig.production(offline=True), renewed=False)
    except OSError as error:
        raise MissingError(f"sigstore's keys cannot be kept: {error.filename}: {error.strerror}") from None


def _require_sigstore() -> None:
    try:
        import sigstore  # noqa: F401 - whether it is there
    except ImportError:
        raise MissingError(
            "matrix.yaml names an identity, and the package that verifies it is not installed; "
            "pip install 'knowngood[keyless]'"
        ) from None


def _read_ambient_token() -> IdentityToken | None:
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential

    try:
        credential = detect_credential()
        return IdentityToken(credential) if credential else None
    except IdentityError as error:
        advice = "on GitHub the job needs `permissions: id-token: write`"
        raise MissingError(f"CI offers this job no identity: {_first_line(error)}; {advice}") from None


def _describe_signer(bundle: Bundle) -> str:
    """Return by whom a bundle says that it is, which nothing proves yet; empty when it does not say."""
    from cryptography import x509

    try:
        names = bundle.signing_certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return f", which says it is by {' and '.join(str(name.value) for name in names)},"
    except (ValueError, x509.ExtensionNotFound):
        return ""


def _first_line(error: BaseException) -> str:
    text = str(error) or (str(error.__cause__) if error.__cause__ else "")
    return f"{type(error).__name__}: {text}".splitlines()[0][:300] if text else type(error).__name__


ReleaseVerifier = VerificationKey | TrustedIdentity
"""One of these must have signed what is published."""
ReleaseSigner = SigningKey | KeylessSigner


def load_release_verifiers(root: Path, policy: PublishPolicy) -> tuple[ReleaseVerifier, ...]:
    """Return the keys and identities that matrix.yaml names; the files of keys are below `root`.

    Raises:
        UsageError: a file is missing or malformed.
        MissingError: an identity is named, and the package that verifies it is not installed.
    """
    keys = load_verification_keys(root, policy.keys)
    return (*keys, *load_trusted_identities(root, policy.identities))


def find_release_signer(path: str | None, named: Sequence[ReleaseVerifier]) -> ReleaseSigner | None:
    """Return the private key in the file `path` or of `KNOWNGOOD_SIGNING_KEY`, else the identity that CI offers.

    `named` are the keys and identities that matrix.yaml names. The result is `None` when it names none and there is no
    private key.

    Raises:
        MissingError: some are named, and there is neither a private key nor an identity.
        UsageError: the private key belongs to none of them.
    """
    keys = [item for item in named if isinstance(item, VerificationKey)]
    identities = [item for item in named if isinstance(item, TrustedIdentity)]
    file = path or os.environ.get(SIGNING_KEY_VARIABLE)
    if not identities or (file and keys):
        return find_signing_key(path, keys)
    if file:
        raise UsageError(f"matrix.yaml names an identity and no key, so nobody would accept a signature with {file}")
    signer = find_keyless_signer(identities)
    if signer is None:
        names = " or ".join(item.name for item in identities)
        raise MissingError(
            f"matrix.yaml names {names}, and CI offers no identity here; publish in the job that has it"
            + (f", or name the file of a private key with --key or {SIGNING_KEY_VARIABLE}" if keys else "")
        )
    return signer


def own_verifiers(signer: ReleaseSigner) -> Sequence[ReleaseVerifier]:
    """Return what accepts the signatures that `signer` makes."""
    return signer.verifiers if isinstance(signer, KeylessSigner) else (signer.verification_key,)
