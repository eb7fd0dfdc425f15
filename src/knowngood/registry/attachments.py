"""Documents about an image, kept beside it in the registry as OCI referrers.

Each document has a manifest of its own whose `subject` is the image. In a registry without the referrers API, the list
of them is written under the tag that the specification names for it, `sha256-<the image's digest>`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.registry.manifests import INDEX_MEDIA_TYPE, MANIFEST_MEDIA_TYPE, Descriptor, RegistryManifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from knowngood.registry.registry_client import Registry

SBOM_MEDIA_TYPE = "application/vnd.cyclonedx+json"
PROVENANCE_MEDIA_TYPE = "application/vnd.in-toto+json"
TIER_MEDIA_TYPE = "application/vnd.knowngood.tier+json"
EVIDENCE_MEDIA_TYPE = "application/vnd.knowngood.evidence+json"

PROOF_MEDIA_TYPES = (EVIDENCE_MEDIA_TYPE, TIER_MEDIA_TYPE)
"""The documents about an image that a later run may add to."""

_EMPTY = "application/vnd.oci.empty.v1+json"
_EMPTY_CONFIG = b"{}"
_TITLE = "org.opencontainers.image.title"
_WRITE_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A document about an image."""

    media: str
    """Media type of the document, and type of the artifact that contains it."""
    name: str
    """File name of the document."""
    data: bytes

    def document(self) -> dict[str, Any]:
        """Return the document as JSON; `KnowngoodError` when it is not JSON."""
        try:
            return dict(json.loads(self.data))
        except (ValueError, TypeError):
            raise KnowngoodError(f"the attached {self.name} is not a JSON document") from None


def fallback_tag(digest: str) -> str:
    """Return the tag of the list of referrers in a registry that has no API for it."""
    return digest.replace(":", "-")


def attach_documents(registry: Registry, subject: Descriptor, attachments: Iterable[Attachment]) -> None:
    """Push documents that refer to the image `subject`; what is there already stays as it is."""
    listed = []
    tracked = True
    for item in attachments:
        registry.put_bytes(_EMPTY_CONFIG, _EMPTY)
        registry.put_bytes(item.data, item.media)
        manifest = attachment_manifest(subject, item)
        tracked &= registry.put_manifest(manifest, manifest.descriptor.digest)
        listed.append({**manifest.descriptor.document(), "artifactType": item.media})
    if listed and not tracked:
        _add_to_fallback_index(registry, subject.digest, listed)


def attach_missing(registry: Registry, digest: str, attachments: Iterable[Attachment]) -> list[str]:
    """Push those of these documents that the published image does not have, and return their names.

    For a document that is there, this costs one small request. Raises `KnowngoodError` when the image is not there.
    """
    image = registry.manifest(digest)
    if image is None:
        raise KnowngoodError(f"{registry.repository} does not have {digest}")
    missing = [
        item
        for item in attachments
        if registry.digest(attachment_manifest(image.descriptor, item).descriptor.digest) is None
    ]
    attach_documents(registry, image.descriptor, missing)
    return [item.name for item in missing]


def fetch_attachments(registry: Registry, digest: str) -> list[Attachment]:
    """Return the documents that are attached to an image, each checked against its digest.

    Raises `KnowngoodError` when the registry lists a document that it does not have, or that belongs to another image.
    """
    documents = []
    for entry in _index_entries(registry.referrers(digest) or registry.manifest(fallback_tag(digest))):
        listed = Descriptor.read(entry)
        manifest = registry.manifest(listed.digest)
        if manifest is None:
            raise KnowngoodError(f"{registry.repository} lists {listed.digest} as attached, but does not have it")
        if manifest.document.get("subject", {}).get("digest") != digest:
            raise KnowngoodError(f"{listed.digest} is listed as attached to {digest}, but names another subject")
        for layer in manifest.document["layers"]:
            blob = Descriptor.read(layer)
            name = str(layer.get("annotations", {}).get(_TITLE, blob.digest))
            documents.append(Attachment(media=blob.media, name=name, data=registry.read(blob)))
    return documents


def attachment_manifest(subject: Descriptor, item: Attachment) -> RegistryManifest:
    """Return the manifest with which a document refers to the image `subject`."""
    config, blob = Descriptor.of(_EMPTY_CONFIG, _EMPTY), Descriptor.of(item.data, item.media)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "artifactType": item.media,
        "config": config.document(),
        "layers": [{**blob.document(), "annotations": {_TITLE: item.name}}],
        "subject": subject.document(),
    }
    return RegistryManifest(
        data=json.dumps(document, sort_keys=True, separators=(",", ":")).encode(), media=MANIFEST_MEDIA_TYPE
    )


def _index_entries(index: RegistryManifest | None) -> list[dict[str, Any]]:
    return [] if index is None else list(index.document.get("manifests") or [])


def _add_to_fallback_index(registry: Registry, digest: str, entries: list[dict[str, Any]]) -> None:
    """Add entries to the list under the fallback tag, and read it again: another writer may have replaced it."""
    tag = fallback_tag(digest)
    for _ in range(_WRITE_ATTEMPTS):
        present = _index_entries(registry.manifest(tag))
        digests = {entry["digest"] for entry in present}
        missing = [entry for entry in entries if entry["digest"] not in digests]
        if not missing:
            return
        index = {"schemaVersion": 2, "mediaType": INDEX_MEDIA_TYPE, "manifests": [*present, *missing]}
        data = json.dumps(index, sort_keys=True, separators=(",", ":")).encode()
        registry.put_manifest(RegistryManifest(data=data, media=INDEX_MEDIA_TYPE), tag)
    raise KnowngoodError(f"{registry.repository}:{tag}: other writers kept replacing it; run it again")
