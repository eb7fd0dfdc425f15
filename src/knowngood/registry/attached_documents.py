"""Look at the documents that are attached to an image, and attach those that are missing or damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.registry import attachments
from knowngood.registry.attachments import Attachment
from knowngood.registry.content_inspection import ContentFault
from knowngood.registry.manifests import DamagedContentError, Descriptor, UnservedContentError

if TYPE_CHECKING:
    from knowngood.registry.content_inspection import ContentInspector


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
            if attachments.attachment_manifest(subject, item).descriptor.digest not in digests
            and (exactly or item.media in attachments.PROOF_MEDIA_TYPES or item.media not in medias)
        ]


def inspect_documents(inspector: ContentInspector, digest: str) -> DocumentList:
    """Look at the list of documents about an image, and at each of them."""
    try:
        entries, tracked = attachments.list_referrers(inspector.registry, digest)
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
        for blob in attachments.attachment_manifest(subject, item).blobs():
            inspector.forget(blob.digest)
    if missing:
        attachments.attach_documents(inspector.registry, subject, missing)
        present = inspect_documents(inspector, subject.digest)
    own = {attachments.attachment_manifest(subject, item).descriptor.digest for item in wanted}
    dropped = {item.digest for item in present.documents if item.fault} - own
    if dropped and not present.tracked:
        attachments.attach_documents(inspector.registry, subject, [], without=dropped)
    return missing


def select_attached(
    subject: Descriptor, wanted: Iterable[Attachment], present: DocumentList, sent: Collection[Attachment]
) -> list[Attachment]:
    """Return those of the wanted documents that are attached: those that were there sound and those just sent."""
    sound = {item.digest for item in present.documents if not item.fault}
    return [
        item
        for item in wanted
        if item in sent or attachments.attachment_manifest(subject, item).descriptor.digest in sound
    ]


def _inspect_entry(inspector: ContentInspector, digest: str, entry: dict[str, Any]) -> ListedDocument:
    media, own = str(entry.get("artifactType", "")), str(entry.get("digest", ""))
    damaged, reason = own, ""
    try:
        manifest, reason = inspector.read_manifest(Descriptor.read(entry).digest)
        if manifest and manifest.document.get("subject", {}).get("digest") != digest:
            reason = "belongs to another image"
        elif manifest:
            reasons = inspector.find_reasons(manifest.blobs())
            damaged, reason = next(((blob, text) for blob, text in reasons.items() if text), (own, ""))
    except MissingError:
        raise
    except (KnowngoodError, LookupError, TypeError, ValueError, AttributeError):
        reason = "is no document"
    fault = ContentFault(content=f"the document {media}", digest=damaged, reason=reason) if reason else None
    return ListedDocument(digest=own, media=media, fault=fault)
