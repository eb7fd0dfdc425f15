"""Signing with the identity of a CI job in place of a key, and verifying such signatures.

Sigstore's service Fulcio certifies for ten minutes that a key belongs to an identity, and its log Rekor records what
was signed in that time. The certificate, the proof of the log and the signature together are a bundle. The package
`sigstore` makes and verifies bundles; it is an extra of this program and imported here only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.data_files import read_data_bytes
from knowngood.core.errors import KnowngoodError, MissingError, NetworkError, UsageError
from knowngood.core.publish_policy import SigningIdentity

if TYPE_CHECKING:
    from sigstore.models import Bundle, ClientTrustConfig
    from sigstore.oidc import IdentityToken

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
