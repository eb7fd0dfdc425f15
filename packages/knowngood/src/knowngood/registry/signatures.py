"""Signatures of what is published: the image, every document attached to it, and its provenance as an attestation.

A signature with a key is stored as cosign stores it, so that cosign, skopeo and podman can verify it. A signature by an
identity that CI offers is a bundle of sigstore, attached as an OCI referrer to what it signs. The layout is that of
cosign 3 and of GitHub's attestations: the artifact type of the manifest is that of a bundle, and the bundle holds an
in-toto statement about the manifest's digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from knowngood import __version__
from knowngood.core.errors import KnowngoodError
from knowngood.core.json_document import parse_foreign_json
from knowngood.project.release_signers import (
    KeylessSigner,
    ReleaseSigner,
    ReleaseVerifier,
    TrustedIdentity,
    VerificationKey,
    own_verifiers,
)
from knowngood.registry import attachments, platform_index, signed_documents
from knowngood.registry.attachments import Attachment
from knowngood.registry.manifests import Descriptor
from knowngood.registry.provenance import PREDICATE_TYPE
from knowngood.registry.signed_documents import CosignDocument, SignedName, ValidSignature

if TYPE_CHECKING:
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
    if not _find_signer(registry, digest, own_verifiers(signer), tag=tag)[0]:
        chosen += [
            item
            for item in attachments.fetch_attachments(registry, digest)
            if item not in chosen
            and not is_bundle(item)
            and is_document_signed(registry, attachments.attachment_manifest(image, item).descriptor.digest, trusted)
        ]
    sign_release(registry, tag, chosen, signer, image)


def sign_alias(registry: Registry, alias: str, digest: str, signer: ReleaseSigner) -> None:
    """Sign an image under an alias; of an index first the images that it lists, because clients verify both.

    Raises `KnowngoodError` when the registry does not have it.
    """
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} lost {digest} before {alias} could name it; run it again")
    images = platform_index.list_index_images(manifest).values() if manifest.is_index else ()
    for item in (*images, digest):
        sign_name(registry, f"{registry.repository}:{alias}", item, signer)


def sign_name(registry: Registry, reference: str, digest: str, signer: ReleaseSigner) -> bool:
    """Sign that a manifest is published as `reference`, and return whether that was needed."""
    name = SignedName(reference=reference, digest=digest)
    present = _read_signatures(registry, digest, own_verifiers(signer))
    if any(isinstance(item, ValidSignature) and item.name == name for item in present):
        return False
    if isinstance(signer, KeylessSigner):
        _attach_bundle(registry, digest, signer.sign_statement(name.statement()), signed_documents.SIGN_PREDICATE)
    else:
        payload = name.payload(f"knowngood {__version__}")
        annotations = {signed_documents.SIGNATURE_ANNOTATION: base64.b64encode(signer.sign_bytes(payload)).decode()}
        document = CosignDocument(media=signed_documents.PAYLOAD_MEDIA_TYPE, data=payload, annotations=annotations)
        signed_documents.add_cosign_document(registry, signed_documents.signature_tag(digest), document)
    return True


def is_image_signed(registry: Registry, digest: str, verifiers: Sequence[ReleaseVerifier]) -> bool:
    """Return whether one of these keys or identities has signed an image, under any tag of this repository."""
    return _find_signer(registry, digest, verifiers)[0] is not None


def is_document_signed(registry: Registry, digest: str, verifiers: Sequence[ReleaseVerifier]) -> bool:
    """Return whether one of these keys or identities has signed the manifest that attaches a document to an image."""
    return _find_signer(registry, digest, verifiers, of_document=True)[0] is not None


def judge_image_signature(
    registry: Registry, digest: str, tag: str | None, verifiers: Sequence[ReleaseVerifier]
) -> SignatureJudgement:
    """Return whether one of the keys or identities has signed an image.

    The signature must be for this repository, and with `tag` for that tag. Without any nothing is verified.
    """
    required = tuple(item.name for item in verifiers)
    if not verifiers:
        tagged = registry.manifest(signed_documents.signature_tag(digest)) is not None
        return SignatureJudgement(present=tagged or _has_bundle(registry, digest))
    signer, reasons = _find_signer(registry, digest, verifiers, tag=tag)
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
    signed = tuple(
        item
        for item in documents
        if is_document_signed(registry, attachments.attachment_manifest(image, item).descriptor.digest, verifiers)
    )
    missing = _attestation_problem(registry, image.digest, verifiers)
    return replace(judgement, problems=(missing,) if missing else (), signed=signed)


def _attest(registry: Registry, digest: str, provenance: Attachment, signer: ReleaseSigner) -> None:
    """Add the provenance of an image as a signed in-toto statement, unless this signer has signed it already."""
    if provenance.document() in list(_read_statements(registry, digest, own_verifiers(signer))):
        return
    if isinstance(signer, KeylessSigner):
        _attach_bundle(registry, digest, signer.sign_statement(provenance.data), PREDICATE_TYPE)
        return
    envelope = CosignDocument(
        media=signed_documents.ENVELOPE_MEDIA_TYPE,
        data=signed_documents.sign_statement(provenance.data, signer.sign_bytes),
        annotations={signed_documents.SIGNATURE_ANNOTATION: "", "predicateType": PREDICATE_TYPE},
    )
    signed_documents.add_cosign_document(registry, signed_documents.attestation_tag(digest), envelope)


def _read_statements(
    registry: Registry, digest: str, verifiers: Sequence[ReleaseVerifier]
) -> Iterator[dict[str, Any] | str]:
    """Yield the in-toto statements about an image that these keys and identities have signed, as `_read_signatures`."""
    keys, identities = _split(verifiers)
    if keys:
        yield from _read_key_statements(registry, digest, keys)
    if identities:
        yield from _read_bundle_statements(registry, digest, identities)


def _attestation_problem(registry: Registry, digest: str, verifiers: Sequence[ReleaseVerifier]) -> str | None:
    """Return why no attestation of the provenance of this image is valid, or `None` when one is."""
    reasons = []
    for statement in _read_statements(registry, digest, verifiers):
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
    registry: Registry,
    digest: str,
    verifiers: Sequence[ReleaseVerifier],
    *,
    tag: str | None = None,
    of_document: bool = False,
) -> tuple[ReleaseVerifier | None, list[str]]:
    """Return the key or identity that signed a manifest, or `None` with the reason for each signature there is.

    An image is signed for a tag and a document for none, so that no document counts as an image.
    """
    reasons = []
    for item in _read_signatures(registry, digest, verifiers):
        if isinstance(item, str):
            reasons.append(item)
        elif item.name.digest != digest:
            reasons.append(f"the signature is of {item.name.digest}, another image")
        elif item.name.repository != str(registry.repository):
            place = item.name.repository or "no repository"
            reasons.append(f"the signature is for {place}, not for {registry.repository}")
        elif of_document != (item.name.tag is None):
            reasons.append(f"the signature is of {'an image' if of_document else 'a document about an image'}")
        elif tag not in (None, item.name.tag):
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
        yield from _read_key_signatures(registry, digest, keys)
    if identities:
        yield from _read_bundle_signatures(registry, digest, identities)


def _split(verifiers: Sequence[ReleaseVerifier]) -> tuple[list[VerificationKey], list[TrustedIdentity]]:
    keys = [item for item in verifiers if isinstance(item, VerificationKey)]
    return keys, [item for item in verifiers if isinstance(item, TrustedIdentity)]


def _read_key_signatures(
    registry: Registry, digest: str, keys: Sequence[VerificationKey]
) -> Iterator[ValidSignature | str]:
    """Yield what these keys have signed of a manifest, and the reason for each signature that is not valid."""
    for document in signed_documents.read_cosign_documents(registry, signed_documents.signature_tag(digest)):
        if isinstance(document, str):
            yield document
            continue
        try:
            encoded = document.annotations.get(signed_documents.SIGNATURE_ANNOTATION, "")
            signature = signed_documents.decode_signature(encoded)
            signer = next((key for key in keys if key.accepts(signature, document.data)), None)
            if signer is None:
                yield "the signature is by another key, or what it signs was changed"
            else:
                yield ValidSignature(name=signed_documents.parse_payload(document.data), signer=signer)
        except KnowngoodError as error:
            yield str(error)


def _read_key_statements(
    registry: Registry, digest: str, keys: Sequence[VerificationKey]
) -> Iterator[dict[str, Any] | str]:
    """Yield the in-toto statements about an image that these keys have signed, and a reason for each other one."""
    for document in signed_documents.read_cosign_documents(registry, signed_documents.attestation_tag(digest)):
        if isinstance(document, str):
            yield document
            continue
        try:
            yield signed_documents.verify_envelope(
                document.data, lambda signature, data: any(key.accepts(signature, data) for key in keys)
            )
        except KnowngoodError as error:
            yield str(error)


BUNDLE_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_BUNDLE_PREFIX = "application/vnd.dev.sigstore.bundle"


def is_bundle(item: Attachment) -> bool:
    """Return whether an attached document is a signature rather than a document about the image."""
    return item.media.startswith(_BUNDLE_PREFIX)


def _read_bundle_signatures(
    registry: Registry, digest: str, identities: Sequence[TrustedIdentity]
) -> Iterator[ValidSignature | str]:
    """Yield what these identities have signed of a manifest, and the reason for each bundle that is not valid."""
    for item in _verify_bundles(registry, digest, identities):
        if isinstance(item, str):
            yield item
        elif item[0].get("predicateType") == signed_documents.SIGN_PREDICATE:
            try:
                yield ValidSignature(name=signed_documents.parse_sign_statement(item[0]), signer=item[1])
            except KnowngoodError as error:
                yield str(error)


def _read_bundle_statements(
    registry: Registry, digest: str, identities: Sequence[TrustedIdentity]
) -> Iterator[dict[str, Any] | str]:
    """Yield the in-toto statements about an image that these identities have signed, besides those over its name.

    For each bundle that is not valid, the reason is yielded.
    """
    for item in _verify_bundles(registry, digest, identities):
        if isinstance(item, str):
            yield item
        elif item[0].get("predicateType") != signed_documents.SIGN_PREDICATE:
            yield item[0]


def _has_bundle(registry: Registry, digest: str) -> bool:
    """Return whether the registry has any bundle about a manifest, valid or not."""
    return next(_read_bundles(registry, digest), None) is not None


def _verify_bundles(
    registry: Registry, digest: str, identities: Sequence[TrustedIdentity]
) -> Iterator[tuple[dict[str, Any], TrustedIdentity] | str]:
    """Yield the statement of each valid bundle with the identity that signed it, and a reason for each other one."""
    for data in _read_bundles(registry, digest):
        if isinstance(data, str):
            yield data
            continue
        reasons = []
        for identity in identities:
            try:
                statement = identity.verify_bundle(data)
                yield parse_foreign_json(statement, "the bundle signs no in-toto statement", dict[str, Any]), identity
                break
            except KnowngoodError as error:
                reasons.append(str(error))
        else:
            yield "; ".join(reasons)


def _read_bundles(registry: Registry, digest: str) -> Iterator[bytes | str]:
    try:
        entries, _ = attachments.list_referrers(registry, digest)
    except KnowngoodError as error:
        yield f"the list of bundles: {error}"
        return
    most = signed_documents.MOST_DOCUMENTS
    bundles = [entry for entry in entries if entry.get("artifactType", "").startswith(_BUNDLE_PREFIX)]
    for entry in bundles[:most]:
        try:
            yield _read_bundle(registry, digest, Descriptor.read(entry).digest)
        except KnowngoodError as error:
            yield f"a bundle cannot be read: {error}"
    if len(bundles) > most:
        yield f"there are {len(bundles)} bundles, and only the first {most} were looked at"


def _read_bundle(registry: Registry, digest: str, name: str) -> bytes:
    manifest = registry.manifest(name)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} lists {name} and does not have it")
    if manifest.subject != digest:
        raise KnowngoodError(f"{name} is listed for {digest}, and names another image")
    layers = manifest.document.get("layers", [])
    if len(layers) != 1:
        raise KnowngoodError(f"{name} has {len(layers)} layers, and a bundle has one")
    return signed_documents.read_signed_blob(registry, layers[0])


def _attach_bundle(registry: Registry, digest: str, bundle: bytes, predicate: str) -> None:
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} does not have {digest}, which is to be signed")
    item = Attachment(
        media=BUNDLE_MEDIA_TYPE,
        name=f"{hashlib.sha256(bundle).hexdigest()[:12]}.sigstore.json",
        data=bundle,
        annotations={"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": predicate},
    )
    attachments.attach_documents(registry, manifest.descriptor, [item])
