"""Signatures of what is published: the image, every document attached to it, and its provenance as an attestation.

They are made with a key (`key_signatures`) or by an identity that CI offers (`bundle_signatures`); here is what both
have in common: what is signed, in which order, and what a signature must say to count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.project.keyless_identity import KeylessSigner, TrustedIdentity
from knowngood.project.release_signers import ReleaseSigner, ReleaseVerifier, own_verifiers
from knowngood.project.signing_keys import VerificationKey
from knowngood.registry import attachments, bundle_signatures, cosign_tags, key_signatures, signed_documents
from knowngood.registry.provenance import PREDICATE_TYPE
from knowngood.registry.signed_documents import SignedName, ValidSignature

if TYPE_CHECKING:
    from knowngood.registry.attachments import Attachment
    from knowngood.registry.manifests import Descriptor
    from knowngood.registry.registry_client import Registry


@dataclass(frozen=True, kw_only=True)
class SignatureJudgement:
    """Whether a published image is signed, as `publish --verify` and `pull` say it."""

    required: tuple[str, ...] = ()
    """The keys and identities of which one must have signed; empty when matrix.yaml names none."""
    signer: ReleaseVerifier | None = None
    """The key or the identity that signed the image."""
    present: bool = False
    """Whether the registry has any signature of the image, valid or not."""
    problems: tuple[str, ...] = ()
    signed: tuple[Attachment, ...] = ()
    """The attached documents that one of them has signed."""

    def document(self) -> dict[str, Any]:
        """Return this as JSON values."""
        identity = self.signer.identity if isinstance(self.signer, TrustedIdentity) else None
        return {
            "signed": self.signer is not None,
            "key": self.signer.name if isinstance(self.signer, VerificationKey) else None,
            "identity": {"issuer": identity.issuer, "subject": identity.subject} if identity else None,
            "required": list(self.required),
        }

    def text(self) -> str:
        """Return one line for people."""
        if self.signer:
            kept = isinstance(self.signer, TrustedIdentity) and not self.signer.trust.renewed
            note = " (sigstore's keys could not be renewed; those that are kept here were taken)" if kept else ""
            return f"signed with {self.signer.name}{note}"
        if self.required:
            return f"NOT SIGNED with {' or '.join(self.required)}"
        if self.present:
            return "unsigned: it has a signature, but matrix.yaml names no key to verify it with"
        return "unsigned: matrix.yaml names no key"


def sign_release(
    registry: Registry, tag: str, documents: Iterable[Attachment], signer: ReleaseSigner, image: Descriptor
) -> None:
    """Sign the documents attached to an image, its provenance as an attestation, and last the image under its tag.

    What this signer has signed already stays as it is. An image that is signed has signed documents.
    """
    for item in documents:
        digest = attachments.attachment_manifest(image, item).descriptor.digest
        sign_name(registry, str(registry.repository), digest, signer)
        if item.media == attachments.PROVENANCE_MEDIA_TYPE:
            _attest(registry, image.digest, item, signer)
    sign_name(registry, f"{registry.repository}:{tag}", image.digest, signer)


def renew_signatures(  # noqa: PLR0913, PLR0917
    registry: Registry,
    digest: str,
    tag: str,
    documents: Sequence[Attachment],
    signer: ReleaseSigner,
    trusted: Sequence[ReleaseVerifier],
) -> None:
    """Sign `documents` of a published image; when `signer` has not signed it, all that a `trusted` one has signed.

    Raises `KnowngoodError` when the registry does not have the image.
    """
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} does not have {digest}")
    image = manifest.descriptor
    chosen = list(documents)
    if not _find_signer(registry, digest, tag, own_verifiers(signer))[0]:
        chosen += [
            item
            for item in attachments.fetch_attachments(registry, digest)
            if item not in chosen
            and not bundle_signatures.is_bundle(item)
            and is_document_signed(registry, image, item, trusted)
        ]
    sign_release(registry, tag, chosen, signer, image)


def sign_name(registry: Registry, reference: str, digest: str, signer: ReleaseSigner) -> bool:
    """Sign that a manifest is published as `reference`, and return whether that was needed."""
    name = SignedName(reference=reference, digest=digest)
    present = _read_signatures(registry, digest, own_verifiers(signer))
    if any(isinstance(item, ValidSignature) and item.name == name for item in present):
        return False
    if isinstance(signer, KeylessSigner):
        bundle_signatures.sign_name_with_identity(registry, name, signer)
    else:
        key_signatures.sign_name_with_key(registry, name, signer)
    return True


def has_signature(registry: Registry, digest: str, verifiers: Sequence[ReleaseVerifier]) -> bool:
    """Return whether one of these keys or identities has signed a manifest, under any name."""
    return _find_signer(registry, digest, None, verifiers)[0] is not None


def is_document_signed(
    registry: Registry, image: Descriptor, item: Attachment, verifiers: Sequence[ReleaseVerifier]
) -> bool:
    """Return whether one of these keys or identities has signed a document as one about this image."""
    return has_signature(registry, attachments.attachment_manifest(image, item).descriptor.digest, verifiers)


def judge_image_signature(
    registry: Registry, digest: str, tag: str | None, verifiers: Sequence[ReleaseVerifier]
) -> SignatureJudgement:
    """Return whether one of the keys or identities has signed an image.

    With `tag`, the signature must be for that tag, or for the whole repository. Without any nothing is verified.
    """
    required = tuple(item.name for item in verifiers)
    if not verifiers:
        tagged = registry.manifest(cosign_tags.signature_tag(digest)) is not None
        return SignatureJudgement(present=tagged or bundle_signatures.has_bundle(registry, digest))
    signer, reasons = _find_signer(registry, digest, tag, verifiers)
    if signer is not None:
        return SignatureJudgement(required=required, signer=signer, present=True)
    reason = "; ".join(reasons) or "the registry has no signature of it"
    problem = f"{digest} is not signed with {' or '.join(required)}: {reason}"
    return SignatureJudgement(required=required, present=bool(reasons), problems=(problem,))


def judge_signatures(
    registry: Registry,
    image: Descriptor,
    tag: str | None,
    documents: Iterable[Attachment],
    verifiers: Sequence[ReleaseVerifier],
) -> SignatureJudgement:
    """Return what `judge_image_signature` does, and which of the documents attached to the image are signed.

    The provenance must be signed as an attestation too.
    """
    judgement = judge_image_signature(registry, image.digest, tag, verifiers)
    if judgement.signer is None:
        return judgement
    signed = tuple(item for item in documents if is_document_signed(registry, image, item, verifiers))
    missing = _attestation_problem(registry, image.digest, verifiers)
    return replace(judgement, problems=(missing,) if missing else (), signed=signed)


def _attest(registry: Registry, digest: str, provenance: Attachment, signer: ReleaseSigner) -> None:
    if isinstance(signer, KeylessSigner):
        bundle_signatures.attest_with_identity(registry, digest, provenance, signer)
    else:
        key_signatures.attest_with_key(registry, digest, provenance, signer)


def _attestation_problem(registry: Registry, digest: str, verifiers: Sequence[ReleaseVerifier]) -> str | None:
    """Return why no attestation of the provenance of this image is valid, or `None` when one is."""
    keys, identities = _split(verifiers)
    reasons = []
    for statement in (
        *(key_signatures.read_key_statements(registry, digest, keys) if keys else ()),
        *(bundle_signatures.read_bundle_statements(registry, digest, identities) if identities else ()),
    ):
        if isinstance(statement, str):
            reasons.append(statement)
            continue
        try:
            signed_documents.check_statement(statement, PREDICATE_TYPE, digest)
        except KnowngoodError as error:
            reasons.append(str(error))
        else:
            return None
    return f"no signed provenance: {'; '.join(reasons) or 'the registry has no attestation of it'}"


def _find_signer(
    registry: Registry, digest: str, tag: str | None, verifiers: Sequence[ReleaseVerifier]
) -> tuple[ReleaseVerifier | None, list[str]]:
    """Return the key or identity that signed a manifest, or `None` with the reason for each signature there is."""
    reasons = []
    for item in _read_signatures(registry, digest, verifiers):
        if isinstance(item, str):
            reasons.append(item)
        elif item.name.digest != digest:
            reasons.append(f"the signature is of {item.name.digest}, another image")
        elif tag is not None and item.name.tag not in (None, tag):
            reasons.append(f"the signature is for the tag {item.name.tag}, not for {tag}")
        else:
            return item.signer, []
    return None, reasons


def _read_signatures(
    registry: Registry, digest: str, verifiers: Sequence[ReleaseVerifier]
) -> Iterator[ValidSignature | str]:
    """Yield what these keys and identities have signed of a manifest, and a reason for each signature not valid."""
    keys, identities = _split(verifiers)
    if keys:
        yield from key_signatures.read_key_signatures(registry, digest, keys)
    if identities:
        yield from bundle_signatures.read_bundle_signatures(registry, digest, identities)


def _split(verifiers: Sequence[ReleaseVerifier]) -> tuple[list[VerificationKey], list[TrustedIdentity]]:
    keys = [item for item in verifiers if isinstance(item, VerificationKey)]
    return keys, [item for item in verifiers if isinstance(item, TrustedIdentity)]
