"""Documents about an image, kept beside it in the registry as OCI referrers.

Each document has a manifest of its own whose `subject` is the image. In a registry without the referrers API, the list
of them is written under the tag that the specification names for it, `sha256-<the image's digest>`.
"""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.registry.manifests import (
    INDEX_MEDIA_TYPE,
    MANIFEST_MEDIA_TYPE,
    DamagedContentError,
    Descriptor,
    RegistryManifest,
    UnservedContentError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from knowngood.registry.registry_client import Registry

SBOM_MEDIA_TYPE = "application/vnd.cyclonedx+json"
PROVENANCE_MEDIA_TYPE = "application/vnd.in-toto+json"
TIER_MEDIA_TYPE = "application/vnd.knowngood.tier+json"
EVIDENCE_MEDIA_TYPE = "application/vnd.knowngood.evidence+json"
SUITE_MEDIA_TYPE = "application/vnd.knowngood.suite+json"

PROOF_MEDIA_TYPES = (EVIDENCE_MEDIA_TYPE, TIER_MEDIA_TYPE, SUITE_MEDIA_TYPE)
"""The documents about an image that a later run, or a later suite, may add to."""

EMPTY_MEDIA_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY_CONFIG = b"{}"
_TITLE = "org.opencontainers.image.title"
_CREATED = "org.opencontainers.image.created"
_WRITE_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A document about an image."""

    media: str
    """Media type of the document, and type of the artifact that contains it."""
    name: str
    """File name of the document."""
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the manifest that attaches it."""

    @property
    def blob(self) -> Descriptor:
        """The descriptor of the document's bytes."""
        return Descriptor.of(self.data, self.media)

    def document(self) -> dict[str, Any]:
        """Return the document as JSON; `KnowngoodError` when it is not JSON."""
        try:
            return dict(json.loads(self.data))
        except (ValueError, TypeError):
            raise KnowngoodError(f"the attached {self.name} is not a JSON document") from None


def fallback_tag(digest: str) -> str:
    """Return the tag of the list of referrers in a registry that has no API for it."""
    return digest.replace(":", "-")


def attach_documents(
    registry: Registry, subject: Descriptor, attachments: Iterable[Attachment], *, without: Collection[str] = ()
) -> None:
    """Push documents that refer to the image `subject`; what is there already stays as it is.

    `without` are digests of documents that the list of referrers names no longer, where that list is under a tag.
    """
    listed = []
    tracked = not without
    for item in attachments:
        # Sent without asking whether they are there: they are small, and what is there may be damaged.
        for blob, data in ((Descriptor.of(EMPTY_CONFIG, EMPTY_MEDIA_TYPE), EMPTY_CONFIG), (item.blob, item.data)):
            registry.put(blob, lambda data=data: contextlib.closing(io.BytesIO(data)))  # type: ignore[misc]
        manifest = attachment_manifest(subject, item)
        tracked &= registry.put_manifest(manifest, manifest.descriptor.digest)
        annotations = {"annotations": dict(item.annotations)} if item.annotations else {}
        listed.append({**manifest.descriptor.document(), "artifactType": item.media, **annotations})
    if not tracked:
        _write_fallback_index(registry, subject.digest, listed, without)


def fetch_attachments(registry: Registry, digest: str, listed: Iterable[str] | None = None) -> list[Attachment]:
    """Return the documents that are attached to an image, each checked against its digest.

    `listed` are the digests of the manifests that attach them, by default all that the registry lists.

    Raises `KnowngoodError` when the registry lists a document that it does not have, or that belongs to another image.
    """
    if listed is None:
        listed = [Descriptor.read(entry).digest for entry in list_referrers(registry, digest)[0]]
    documents = []
    for name in listed:
        manifest = registry.manifest(name)
        if manifest is None:
            raise KnowngoodError(f"{registry.repository} lists {name} as attached, but does not have it")
        if manifest.document.get("subject", {}).get("digest") != digest:
            raise KnowngoodError(f"{name} is listed as attached to {digest}, but names another subject")
        for layer in manifest.document["layers"]:
            blob = Descriptor.read(layer)
            title = str(layer.get("annotations", {}).get(_TITLE, blob.digest))
            documents.append(Attachment(media=blob.media, name=title, data=registry.read(blob)))
    return documents


def list_referrers(registry: Registry, digest: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the descriptors of what refers to an image, as JSON, and whether the registry keeps this list itself."""
    index = registry.referrers(digest)
    return _index_entries(index or registry.manifest(fallback_tag(digest))), index is not None


def attachment_manifest(subject: Descriptor, item: Attachment) -> RegistryManifest:
    """Return the manifest that attaches a document to the image `subject`."""
    more = {"annotations": dict(item.annotations)} if item.annotations else {}
    return artifact_manifest(item.media, item.name, item.blob, {"subject": subject.document(), **more})


def artifact_manifest(
    media: str, name: str, blob: Descriptor, more: Mapping[str, Any] | None = None
) -> RegistryManifest:
    """Return the manifest of an artifact of type `media`: the file `name`, whose content is `blob`.

    `more` are further fields of the manifest.
    """
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "artifactType": media,
        "config": Descriptor.of(EMPTY_CONFIG, EMPTY_MEDIA_TYPE).document(),
        "layers": [{**blob.document(), "annotations": {_TITLE: name}}],
        **(more or {}),
    }
    return RegistryManifest(
        data=json.dumps(document, sort_keys=True, separators=(",", ":")).encode(), media=MANIFEST_MEDIA_TYPE
    )


def _index_entries(index: RegistryManifest | None) -> list[dict[str, Any]]:
    return [] if index is None else list(index.document.get("manifests") or [])


def _write_fallback_index(
    registry: Registry, digest: str, entries: list[dict[str, Any]], without: Collection[str]
) -> None:
    """Change the list under the fallback tag, and read it again: another writer may have replaced it.

    A list that cannot be read is begun anew. It gets its day as an annotation, because a registry may keep the damaged
    bytes of the earlier one under the digest that they had.
    """
    tag = fallback_tag(digest)
    annotations: dict[str, str] = {}
    for _ in range(_WRITE_ATTEMPTS):
        try:
            present = _index_entries(registry.manifest(tag))
        except (DamagedContentError, UnservedContentError):
            present, annotations = [], {_CREATED: datetime.now(UTC).isoformat(timespec="seconds")}
        digests = {entry["digest"] for entry in present}
        kept = [entry for entry in present if entry["digest"] not in without]
        missing = [entry for entry in entries if entry["digest"] not in digests - set(without)]
        if kept == present and not missing:
            return
        index = {"schemaVersion": 2, "mediaType": INDEX_MEDIA_TYPE, "manifests": [*kept, *missing]}
        index |= {"annotations": annotations} if annotations else {}
        data = json.dumps(index, sort_keys=True, separators=(",", ":")).encode()
        registry.put_manifest(RegistryManifest(data=data, media=INDEX_MEDIA_TYPE), tag)
    raise KnowngoodError(f"{registry.repository}:{tag}: other writers kept replacing it; run it again")
