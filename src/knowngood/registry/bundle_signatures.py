"""Signatures by an identity: sigstore's bundles, attached to what they sign as OCI referrers.

The layout is that of cosign 3 and of GitHub's attestations: the artifact type of the manifest is that of a bundle, and
the bundle holds an in-toto statement about the manifest's digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.registry import attachments, signed_documents
from knowngood.registry.attachments import Attachment
from knowngood.registry.manifests import Descriptor
from knowngood.registry.provenance import PREDICATE_TYPE
from knowngood.registry.signed_documents import SignedName, ValidSignature

if TYPE_CHECKING:
    from knowngood.project.keyless_identity import KeylessSigner, TrustedIdentity
    from knowngood.registry.registry_client import Registry

BUNDLE_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_BUNDLE_PREFIX = "application/vnd.dev.sigstore.bundle"
_LARGEST_BUNDLE = 8 << 20
"""Bytes; a bundle of a provenance has some 0.5 MB."""
_MOST_BUNDLES = 100
"""Anybody who may write into a registry can add bundles, and each is verified."""


def is_bundle(item: Attachment) -> bool:
    """Return whether an attached document is a signature rather than a document about the image."""
    return item.media.startswith(_BUNDLE_PREFIX)


def sign_name_with_identity(registry: Registry, name: SignedName, signer: KeylessSigner) -> None:
    """Attach a bundle that signs a name to its manifest."""
    _attach_bundle(registry, name.digest, signer.sign_statement(name.statement()), signed_documents.SIGN_PREDICATE)


def attest_with_identity(registry: Registry, digest: str, provenance: Attachment, signer: KeylessSigner) -> None:
    """Attach the provenance of an image as a signed in-toto statement, unless this identity has signed it already."""
    if provenance.document() not in list(read_bundle_statements(registry, digest, signer.verifiers)):
        _attach_bundle(registry, digest, signer.sign_statement(provenance.data), PREDICATE_TYPE)


def read_bundle_signatures(
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


def read_bundle_statements(
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


def has_bundle(registry: Registry, digest: str) -> bool:
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
                yield signed_documents.parse_signed_json(statement, "the bundle signs no in-toto statement"), identity
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
    bundles = [entry for entry in entries if str(entry.get("artifactType", "")).startswith(_BUNDLE_PREFIX)]
    for entry in bundles[:_MOST_BUNDLES]:
        try:
            yield _read_bundle(registry, digest, Descriptor.read(entry).digest)
        except (KnowngoodError, AttributeError, KeyError, TypeError, ValueError) as error:
            yield f"a bundle cannot be read: {error}"
    if len(bundles) > _MOST_BUNDLES:
        yield f"there are {len(bundles)} bundles, and only the first {_MOST_BUNDLES} were looked at"


def _read_bundle(registry: Registry, digest: str, name: str) -> bytes:
    manifest = registry.manifest(name)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} lists {name} and does not have it")
    if manifest.document.get("subject", {}).get("digest") != digest:
        raise KnowngoodError(f"{name} is listed for {digest}, and names another image")
    (layer,) = manifest.document["layers"]
    blob = Descriptor.read(layer)
    if blob.size > _LARGEST_BUNDLE:
        raise KnowngoodError(f"{blob.size} bytes are too many")
    return registry.read(blob)


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
