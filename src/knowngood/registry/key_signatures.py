"""Signatures with a key, stored as cosign stores them, so that cosign, skopeo and podman can verify them."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from knowngood import __version__
from knowngood.core.errors import KnowngoodError
from knowngood.registry import cosign_tags, signed_documents
from knowngood.registry.cosign_tags import CosignDocument
from knowngood.registry.provenance import PREDICATE_TYPE
from knowngood.registry.signed_documents import SignedName, ValidSignature

if TYPE_CHECKING:
    from knowngood.project.signing_keys import SigningKey, VerificationKey
    from knowngood.registry.attachments import Attachment
    from knowngood.registry.registry_client import Registry


def sign_name_with_key(registry: Registry, name: SignedName, key: SigningKey) -> None:
    """Add a signature over a name to those of its manifest."""
    payload = name.payload(f"knowngood {__version__}")
    annotations = {cosign_tags.SIGNATURE_ANNOTATION: base64.b64encode(key.sign_bytes(payload)).decode()}
    document = CosignDocument(media=signed_documents.PAYLOAD_MEDIA_TYPE, data=payload, annotations=annotations)
    cosign_tags.add_cosign_document(registry, cosign_tags.signature_tag(name.digest), document)


def attest_with_key(registry: Registry, digest: str, provenance: Attachment, key: SigningKey) -> None:
    """Add the provenance of an image as a signed in-toto statement, unless this key has signed it already."""
    tag = cosign_tags.attestation_tag(digest)
    for document in _intact(cosign_tags.read_cosign_documents(registry, tag)):
        with contextlib.suppress(KnowngoodError):
            if signed_documents.verify_envelope(document.data, key.verification_key.accepts) == provenance.document():
                return
    envelope = CosignDocument(
        media=signed_documents.ENVELOPE_MEDIA_TYPE,
        data=signed_documents.sign_statement(provenance.data, key.sign_bytes),
        annotations={cosign_tags.SIGNATURE_ANNOTATION: "", "predicateType": PREDICATE_TYPE},
    )
    cosign_tags.add_cosign_document(registry, tag, envelope)


def read_key_signatures(
    registry: Registry, digest: str, keys: Sequence[VerificationKey]
) -> Iterator[ValidSignature | str]:
    """Yield what these keys have signed of a manifest, and the reason for each signature that is not valid."""
    for document in cosign_tags.read_cosign_documents(registry, cosign_tags.signature_tag(digest)):
        if isinstance(document, str):
            yield document
            continue
        try:
            encoded = document.annotations.get(cosign_tags.SIGNATURE_ANNOTATION, "")
            signature = signed_documents.decode_signature(encoded)
            signer = next((key for key in keys if key.accepts(signature, document.data)), None)
            if signer is None:
                yield "the signature is by another key, or what it signs was changed"
            else:
                yield ValidSignature(name=signed_documents.parse_payload(document.data), signer=signer)
        except KnowngoodError as error:
            yield str(error)


def read_key_statements(
    registry: Registry, digest: str, keys: Sequence[VerificationKey]
) -> Iterator[dict[str, Any] | str]:
    """Yield the in-toto statements about an image that these keys have signed, and a reason for each other one."""
    for document in cosign_tags.read_cosign_documents(registry, cosign_tags.attestation_tag(digest)):
        if isinstance(document, str):
            yield document
            continue
        try:
            yield signed_documents.verify_envelope(
                document.data, lambda signature, data: any(key.accepts(signature, data) for key in keys)
            )
        except KnowngoodError as error:
            yield str(error)


def _intact(documents: Iterable[CosignDocument | str]) -> list[CosignDocument]:
    return [document for document in documents if isinstance(document, CosignDocument)]
