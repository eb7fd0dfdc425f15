"""Signatures of what is published: the image, every document attached to it, and its provenance as an attestation.

They are stored as cosign stores them, so that cosign, skopeo and podman can verify them with the public key alone.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from knowngood import __version__
from knowngood.core.errors import KnowngoodError
from knowngood.registry import attachments, cosign_tags, signed_documents
from knowngood.registry.cosign_tags import CosignDocument
from knowngood.registry.provenance import PREDICATE_TYPE
from knowngood.registry.signed_documents import SignedName

if TYPE_CHECKING:
    from knowngood.project.signing_keys import SigningKey, VerificationKey
    from knowngood.registry.attachments import Attachment
    from knowngood.registry.manifests import Descriptor
    from knowngood.registry.registry_client import Registry


@dataclass(frozen=True, kw_only=True)
class SignatureJudgement:
    """Whether a published image is signed, as `publish --verify` and `pull` say it."""

    required: tuple[str, ...] = ()
    """The names of the public keys of which one must have signed; empty when matrix.yaml names none."""
    key: str | None = None
    """The name of the key that signed the image."""
    present: bool = False
    """Whether the registry has any signature of the image, valid or not."""
    problems: tuple[str, ...] = ()
    signed: tuple[Attachment, ...] = ()
    """The attached documents that a named key has signed."""

    def document(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return {
            "signed": self.key is not None,
            "key": self.key,
            "required": list(self.required),
        }

    def text(self) -> str:
        """Return one line for people."""
        if self.key:
            return f"signed with {self.key}"
        if self.required:
            return f"NOT SIGNED with {' or '.join(self.required)}"
        if self.present:
            return "unsigned: it has a signature, but matrix.yaml names no key to verify it with"
        return "unsigned: matrix.yaml names no key"


def sign_release(
    registry: Registry, tag: str, documents: Iterable[Attachment], key: SigningKey, image: Descriptor
) -> None:
    """Sign the documents attached to an image, its provenance as an attestation, and last the image under its tag.

    What this key has signed already stays as it is. An image that is signed has signed documents.
    """
    for item in documents:
        digest = attachments.attachment_manifest(image, item).descriptor.digest
        sign_name(registry, str(registry.repository), digest, key)
        if item.media == attachments.PROVENANCE_MEDIA_TYPE:
            _attest(registry, image.digest, item, key)
    sign_name(registry, f"{registry.repository}:{tag}", image.digest, key)


def renew_signatures(  # noqa: PLR0913, PLR0917
    registry: Registry,
    digest: str,
    tag: str,
    documents: Sequence[Attachment],
    key: SigningKey,
    trusted: Sequence[VerificationKey],
) -> None:
    """Sign `documents` of a published image; when this key has not signed it, all that a `trusted` key has signed.

    Raises `KnowngoodError` when the registry does not have the image.
    """
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} does not have {digest}")
    image = manifest.descriptor
    chosen = list(documents)
    if not _find_signer(registry, digest, tag, [key.verification_key])[0]:
        chosen += [
            item
            for item in attachments.fetch_attachments(registry, digest)
            if item not in chosen and is_document_signed(registry, image, item, trusted)
        ]
    sign_release(registry, tag, chosen, key, image)


def sign_name(registry: Registry, reference: str, digest: str, key: SigningKey) -> bool:
    """Sign that a manifest is published as `reference`, and return whether that was needed."""
    name = SignedName(reference=reference, digest=digest)
    tag = cosign_tags.signature_tag(digest)
    documents = cosign_tags.read_cosign_documents(registry, tag)
    if any(_signed_name(document, [key.verification_key])[0] == name for document in _intact(documents)):
        return False
    payload = name.payload(f"knowngood {__version__}")
    annotations = {cosign_tags.SIGNATURE_ANNOTATION: base64.b64encode(key.sign_bytes(payload)).decode()}
    document = CosignDocument(media=signed_documents.PAYLOAD_MEDIA_TYPE, data=payload, annotations=annotations)
    cosign_tags.add_cosign_document(registry, tag, document)
    return True


def has_signature(registry: Registry, digest: str, keys: Sequence[VerificationKey]) -> bool:
    """Return whether one of these keys has signed a manifest, under any name."""
    return _find_signer(registry, digest, None, keys)[0] is not None


def is_document_signed(
    registry: Registry, image: Descriptor, item: Attachment, keys: Sequence[VerificationKey]
) -> bool:
    """Return whether one of these keys has signed a document as one about this image."""
    return has_signature(registry, attachments.attachment_manifest(image, item).descriptor.digest, keys)


def judge_image_signature(
    registry: Registry, digest: str, tag: str | None, keys: Sequence[VerificationKey]
) -> SignatureJudgement:
    """Return whether one of the keys has signed an image.

    With `tag`, the signature must be for that tag, or for the whole repository. Without keys nothing is verified.
    """
    required = tuple(key.name for key in keys)
    if not keys:
        return SignatureJudgement(present=registry.manifest(cosign_tags.signature_tag(digest)) is not None)
    key, reasons = _find_signer(registry, digest, tag, keys)
    if key is not None:
        return SignatureJudgement(required=required, key=key, present=True)
    reason = "; ".join(reasons) or "the registry has no signature of it"
    problem = f"{digest} is not signed with {' or '.join(required)}: {reason}"
    return SignatureJudgement(required=required, present=bool(reasons), problems=(problem,))


def judge_signatures(
    registry: Registry,
    image: Descriptor,
    tag: str | None,
    documents: Iterable[Attachment],
    keys: Sequence[VerificationKey],
) -> SignatureJudgement:
    """Return what `judge_image_signature` does, and which of the documents attached to the image are signed.

    The provenance must be signed as an attestation too.
    """
    judgement = judge_image_signature(registry, image.digest, tag, keys)
    if judgement.key is None:
        return judgement
    signed = tuple(item for item in documents if is_document_signed(registry, image, item, keys))
    missing = _attestation_problem(registry, image.digest, keys)
    return replace(judgement, problems=(missing,) if missing else (), signed=signed)


def _attest(registry: Registry, digest: str, provenance: Attachment, key: SigningKey) -> bool:
    """Add the provenance of an image as a signed in-toto statement, and return whether that was needed."""
    tag = cosign_tags.attestation_tag(digest)
    for document in _intact(cosign_tags.read_cosign_documents(registry, tag)):
        with contextlib.suppress(KnowngoodError):
            if signed_documents.verify_envelope(document.data, key.verification_key.accepts) == provenance.document():
                return False
    envelope = CosignDocument(
        media=signed_documents.ENVELOPE_MEDIA_TYPE,
        data=signed_documents.sign_statement(provenance.data, key.sign_bytes),
        annotations={cosign_tags.SIGNATURE_ANNOTATION: "", "predicateType": PREDICATE_TYPE},
    )
    cosign_tags.add_cosign_document(registry, tag, envelope)
    return True


def _attestation_problem(registry: Registry, digest: str, keys: Sequence[VerificationKey]) -> str | None:
    """Return why no attestation of the provenance of this image is valid, or `None` when one is."""
    reasons = []
    for document in cosign_tags.read_cosign_documents(registry, cosign_tags.attestation_tag(digest)):
        if isinstance(document, str):
            reasons.append(document)
            continue
        try:
            statement = signed_documents.verify_envelope(
                document.data, lambda signature, data: any(key.accepts(signature, data) for key in keys)
            )
            signed_documents.check_statement(statement, PREDICATE_TYPE, digest)
        except KnowngoodError as error:
            reasons.append(str(error))
        else:
            return None
    return f"no signed provenance: {'; '.join(reasons) or 'the registry has no attestation of it'}"


def _find_signer(
    registry: Registry, digest: str, tag: str | None, keys: Sequence[VerificationKey]
) -> tuple[str | None, list[str]]:
    """Return the name of the key that signed a manifest, or `None` with the reason for each signature there is."""
    reasons = []
    for document in cosign_tags.read_cosign_documents(registry, cosign_tags.signature_tag(digest)):
        if isinstance(document, str):
            reasons.append(document)
            continue
        name, outcome = _signed_name(document, keys)
        if name is None:
            reasons.append(outcome)
        elif name.digest != digest:
            reasons.append(f"the signature is of {name.digest}, another image")
        elif tag is not None and name.tag not in (None, tag):
            reasons.append(f"the signature is for the tag {name.tag}, not for {tag}")
        else:
            return outcome, []
    return None, reasons


def _signed_name(document: CosignDocument, keys: Sequence[VerificationKey]) -> tuple[SignedName | None, str]:
    """Return what a signature states and the name of its key; `None` and the reason when it is not valid."""
    try:
        signature = signed_documents.decode_signature(document.annotations.get(cosign_tags.SIGNATURE_ANNOTATION, ""))
        signer = next((key for key in keys if key.accepts(signature, document.data)), None)
        if signer is None:
            return None, "the signature is by another key, or what it signs was changed"
        return signed_documents.parse_payload(document.data), signer.name
    except KnowngoodError as error:
        return None, str(error)


def _intact(documents: Iterable[CosignDocument | str]) -> list[CosignDocument]:
    return [document for document in documents if isinstance(document, CosignDocument)]
