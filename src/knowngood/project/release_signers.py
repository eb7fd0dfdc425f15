"""Who signs what is published, and whose signatures count: keys, and identities in place of a key."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from knowngood.core.errors import MissingError, UsageError
from knowngood.core.publish_policy import PublishPolicy
from knowngood.project import keyless_identity, signing_keys
from knowngood.project.keyless_identity import KeylessSigner, TrustedIdentity
from knowngood.project.signing_keys import SigningKey, VerificationKey

ReleaseVerifier = VerificationKey | TrustedIdentity
"""One of these must have signed what is published."""
ReleaseSigner = SigningKey | KeylessSigner


def load_release_verifiers(root: Path, policy: PublishPolicy) -> tuple[ReleaseVerifier, ...]:
    """Return the keys and identities that matrix.yaml names; the files of keys are below `root`.

    Raises:
        UsageError: a file is missing or malformed.
        MissingError: an identity is named, and the package that verifies it is not installed.
    """
    keys = signing_keys.load_verification_keys(root, policy.keys)
    return (*keys, *keyless_identity.load_trusted_identities(root, policy.identities))


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
    file = path or os.environ.get(signing_keys.SIGNING_KEY_VARIABLE)
    if not identities or (file and keys):
        return signing_keys.find_signing_key(path, keys)
    if file:
        raise UsageError(f"matrix.yaml names an identity and no key, so nobody would accept a signature with {file}")
    signer = keyless_identity.find_keyless_signer(identities)
    if signer is None:
        names = " or ".join(item.name for item in identities)
        raise MissingError(
            f"matrix.yaml names {names}, and CI offers no identity here; publish in the job that has it"
            + (f", or name the file of a private key with --key or {signing_keys.SIGNING_KEY_VARIABLE}" if keys else "")
        )
    return signer


def own_verifiers(signer: ReleaseSigner) -> Sequence[ReleaseVerifier]:
    """Return what accepts the signatures that `signer` makes."""
    return signer.verifiers if isinstance(signer, KeylessSigner) else (signer.verification_key,)
