"""Documents about an image, kept beside it in the registry as OCI referrers.

Each document has a manifest of its own whose `subject` is the image. In a registry without the referrers API, the list
of them is written under the tag that the specification names for it, `sha256-<the image's digest>`.

Look at the documents that are attached to an image, and attach those that are missing or damaged.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.json_document import parse_foreign_json
from knowngood.registry.content_inspection import ContentFault
from knowngood.registry.manifests import (
    INDEX_MEDIA_TYPE,
    MANIFEST_MEDIA_TYPE,
    DamagedContentError,
    Descriptor,
    DescriptorDocument,
    RegistryManifest,
    UnservedContentError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.registry.content_inspection import ContentInspector
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


T = TypeVar("T")


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
        """Return the document as JSON; `KnowngoodError` when it is not a JSON object."""
        return self.parse(dict[str, Any])

    def parse(self, content: type[T]) -> T:
        """Return the document as JSON of a type; `KnowngoodError` when it is none."""
        return parse_foreign_json(self.data, f"the attached {self.name[:100]} is malformed", content)


def fallback_tag(digest: str) -> str:
    """Return the tag of the list of referrers in a registry that has no API for it."""
    return digest.replace(":", "-")


def attach_documents(
    registry: Registry, subject: Descriptor, attachments: Iterable[Attachment], *, without: Collection[str] = ()
) -> None:
    """Push documents that refer to the image `subject`; what is there already stays as it is.

    `without` are digests of documents that the list of referrers names no longer, where that list is under a tag.
    """
    listed: list[DescriptorDocument] = []
    tracked = not without
    for item in attachments:
        # Sent without asking whether they are there: they are small, and what is there may be damaged.
        for blob, data in ((Descriptor.of(EMPTY_CONFIG, EMPTY_MEDIA_TYPE), EMPTY_CONFIG), (item.blob, item.data)):
            registry.put(blob, lambda data=data: contextlib.closing(io.BytesIO(data)))  # type: ignore[misc]
        manifest = attachment_manifest(subject, item)
        tracked &= registry.put_manifest(manifest, manifest.descriptor.digest)
        entry: DescriptorDocument = {**manifest.descriptor.document(), "artifactType": item.media}
        if item.annotations:
            entry["annotations"] = dict(item.annotations)
        listed.append(entry)
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
        if manifest.subject != digest:
            raise KnowngoodError(f"{name} is listed as attached to {digest}, but names another subject")
        for layer in manifest.document.get("layers", []):
            blob = Descriptor.read(layer)
            title = (layer.get("annotations") or {}).get(_TITLE, blob.digest)
            documents.append(Attachment(media=blob.media, name=title, data=registry.read(blob)))
    return documents


def list_referrers(registry: Registry, digest: str) -> tuple[list[DescriptorDocument], bool]:
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


def _index_entries(index: RegistryManifest | None) -> list[DescriptorDocument]:
    return [] if index is None else list(index.document.get("manifests") or [])


def _write_fallback_index(
    registry: Registry, digest: str, entries: list[DescriptorDocument], without: Collection[str]
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


@dataclass(frozen=True, kw_only=True)
class ListedDocument:
    """One entry of the list of documents about an image."""

    digest: str
    """Digest of the manifest that attaches the document."""
    media: str
    fault: ContentFault | None


@dataclass(frozen=True, kw_only=True)
class DocumentList:
    """The documents that a registry lists for an image."""

    documents: tuple[ListedDocument, ...]
    tracked: bool = False
    """Whether the registry keeps the list itself; elsewhere it is under a tag, and can be written anew."""
    broken: ContentFault | None = None
    """Set when the list itself cannot be read."""

    @property
    def faults(self) -> tuple[ContentFault, ...]:
        """Everything that is damaged or missing."""
        return tuple(fault for fault in (self.broken, *(item.fault for item in self.documents)) if fault)

    def select_missing(self, subject: Descriptor, wanted: Iterable[Attachment], *, exactly: bool) -> list[Attachment]:
        """Return those of the wanted documents that are not there sound. Pure.

        What proves the tier must be there exactly, and so must the suite. Of an SBOM or a provenance one is enough,
        unless `exactly` is true, because it names the programs that made it.
        """
        sound = [item for item in self.documents if not item.fault]
        medias, digests = {item.media for item in sound}, {item.digest for item in sound}
        return [
            item
            for item in wanted
            if attachment_manifest(subject, item).descriptor.digest not in digests
            and (exactly or item.media in PROOF_MEDIA_TYPES or item.media not in medias)
        ]


def inspect_documents(inspector: ContentInspector, digest: str) -> DocumentList:
    """Look at the list of documents about an image, and at each of them."""
    try:
        entries, tracked = list_referrers(inspector.registry, digest)
    except (DamagedContentError, UnservedContentError):
        reason = "cannot be read"
        return DocumentList(
            documents=(), broken=ContentFault(content="the list of documents", digest=digest, reason=reason)
        )
    documents = tuple(_inspect_entry(inspector, digest, entry) for entry in entries)
    return DocumentList(documents=documents, tracked=tracked)


def restore_documents(
    inspector: ContentInspector,
    subject: Descriptor,
    wanted: Collection[Attachment],
    present: DocumentList,
    *,
    exactly: bool = False,
) -> list[Attachment]:
    """Attach those of the wanted documents that are not there sound, and return them; see `select_missing`.

    A damaged document that cannot be made again (an older run, a signature) is taken off the list, where the list is
    under a tag. Where the registry keeps the list itself, it stays there.
    """
    missing = present.select_missing(subject, wanted, exactly=exactly)
    for item in missing:
        for blob in attachment_manifest(subject, item).blobs():
            inspector.forget(blob.digest)
    if missing:
        attach_documents(inspector.registry, subject, missing)
        present = inspect_documents(inspector, subject.digest)
    own = {attachment_manifest(subject, item).descriptor.digest for item in wanted}
    dropped = {item.digest for item in present.documents if item.fault} - own
    if dropped and not present.tracked:
        attach_documents(inspector.registry, subject, [], without=dropped)
    return missing


def select_attached(
    subject: Descriptor, wanted: Iterable[Attachment], present: DocumentList, sent: Collection[Attachment]
) -> list[Attachment]:
    """Return those of the wanted documents that are attached: those that were there sound and those just sent."""
    sound = {item.digest for item in present.documents if not item.fault}
    return [item for item in wanted if item in sent or attachment_manifest(subject, item).descriptor.digest in sound]


def _inspect_entry(inspector: ContentInspector, digest: str, entry: DescriptorDocument) -> ListedDocument:
    media, own = entry.get("artifactType", ""), entry["digest"]
    damaged, reason = own, ""
    try:
        manifest, reason = inspector.read_manifest(Descriptor.read(entry).digest)
        if manifest and manifest.subject != digest:
            reason = "belongs to another image"
        elif manifest:
            reasons = inspector.find_reasons(manifest.blobs())
            damaged, reason = next(((blob, text) for blob, text in reasons.items() if text), (own, ""))
    except MissingError:
        raise
    except KnowngoodError:
        reason = "is no document"
    fault = ContentFault(content=f"the document {media}", digest=damaged, reason=reason) if reason else None
    return ListedDocument(digest=own, media=media, fault=fault)
