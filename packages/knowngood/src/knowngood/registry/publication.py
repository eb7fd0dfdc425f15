"""`knowngood publish`: push a proven image to a registry, staged by its digest and then promoted under its tag.

The order makes an interruption harmless at any moment: blobs, the manifest by digest, the attached documents, reading
everything back, and only then the tag that people pull. Aliases move when all tags are there.

An image that is there already is looked at first, and what is missing or damaged is sent. How closely it is looked at
is the inspector's depth: presence and size, or (`--repair`) every byte.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from knowngood.core.errors import KnowngoodError
from knowngood.registry import attachments, image_transfer
from knowngood.registry.attachments import Attachment, DocumentList
from knowngood.registry.content_inspection import ContentFault, ContentInspector, ImageInspection, InspectionDepth
from knowngood.registry.manifests import DamagedContentError, RegistryManifest, UnservedContentError
from knowngood.registry.registry_client import Registry

if TYPE_CHECKING:
    from knowngood.engine.container_engine import Engine


class PublishStatus(StrEnum):
    """The outcome of publishing one release."""

    PUBLISHED = "published"
    REPAIRED = "repaired"
    """The tag was there, and something that was missing or damaged was sent."""
    UNCHANGED = "unchanged"
    """The tag was there already with this digest, and nothing was missing or damaged as far as it was looked at."""
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class ImageRelease:
    """A proven image that is ready to be published."""

    cell: str
    image: str
    """The image's name in the engine."""
    digest: str
    tag: str
    tier: str
    """How far the image is proven."""
    labels: Mapping[str, str]
    """The labels that the image must have."""
    attachments: tuple[Attachment, ...]


@dataclass(frozen=True, kw_only=True)
class ReleaseSigning:
    """How a release is signed."""

    sign: Callable[[Sequence[Attachment]], object]
    """Signs the image and these documents, which are attached to it."""
    exactly: bool
    """Whether every document is attached as it is now, because no key has signed those that are there."""


@dataclass(frozen=True, kw_only=True)
class PublicationState:
    """What a registry has of a release before anything is sent."""

    tagged: str | None
    """Digest under the release's tag; `None` when there is no tag, or what it names cannot be read."""
    image: ImageInspection
    documents: DocumentList
    tag_fault: ContentFault | None

    @property
    def known(self) -> bool:
        """Whether the registry has this very image, sound or damaged."""
        return self.image.manifest is not None or bool(self.documents.documents)

    def find_faults(self, release: ImageRelease) -> tuple[ContentFault, ...]:
        """Return everything of a release that is missing or damaged."""
        listed = {item.media for item in self.documents.documents}
        lost = [item for item in release.attachments if item.media not in listed]
        return (
            *([self.tag_fault] if self.tag_fault else []),
            *self.image.faults,
            *self.documents.faults,
            *(ContentFault(content=item.name, digest=item.blob.digest, reason="is not attached") for item in lost),
        )


@dataclass(frozen=True, kw_only=True)
class PublishResult:
    """What happened to a release."""

    status: PublishStatus
    pushed: int = 0
    """Bytes of blobs that were sent; what the registry has already is not sent."""
    seconds: float = 0.0
    attached: tuple[str, ...] = ()
    """Names of the documents that were sent."""
    faults: tuple[ContentFault, ...] = ()
    """What was missing or damaged in an image that was there already, and was sent again."""


def inspect_publication(release_tag: str, digest: str, inspector: ContentInspector) -> PublicationState:
    """Look at the tag, the image and the documents of a release, and send nothing."""
    tag_fault = None
    try:
        tagged = inspector.registry.digest(release_tag)
    except (DamagedContentError, UnservedContentError):
        tagged = None
        tag_fault = ContentFault(content="the tag", digest=release_tag, reason="names what cannot be read")
    return PublicationState(
        tagged=tagged,
        tag_fault=tag_fault,
        image=inspector.inspect_image(digest),
        documents=attachments.inspect_documents(inspector, digest),
    )


def predict_status(release: ImageRelease, state: PublicationState) -> PublishStatus:
    """Return what `publish_release` will have done when it succeeds. Pure."""
    if state.tagged == release.digest and not state.find_faults(release):
        return PublishStatus.UNCHANGED
    begun = state.tagged is None and not (state.tag_fault or state.image.faults or state.documents.faults)
    return PublishStatus.PUBLISHED if begun or not state.known else PublishStatus.REPAIRED


def publish_release(
    release: ImageRelease,
    inspector: ContentInspector,
    state: PublicationState,
    open_engine: Callable[[], Engine],
    signing: ReleaseSigning | None = None,
) -> PublishResult:
    """Send what the registry lacks of a release, and put its tag; `state` is what it has.

    The engine is opened only when a blob or the manifest must be sent. An inspector that reads every byte also puts a
    tag back that was moved to another image. What is published is signed before a tag names it.

    Raises `KnowngoodError` when the tag names another image, and `DamagedContentError` when what is read back differs.
    """
    start = time.monotonic()
    registry = inspector.registry
    require_own_tag(release, state, inspector)
    manifest, pushed = _send_image(release, inspector, state.image, open_engine)
    attached = attachments.restore_documents(
        inspector,
        manifest.descriptor,
        release.attachments,
        state.documents,
        exactly=signing is not None and signing.exactly,
    )
    was_tagged = state.tagged == release.digest
    status = predict_status(release, state)
    faults = state.find_faults(release)
    if faults or not was_tagged:
        _check_what_was_sent(release.digest, inspector)
    if state.image.faults or not was_tagged:
        image_transfer.check_published_image(inspector, release.digest, release.labels)
    if signing:
        signing.sign(attachments.select_attached(manifest.descriptor, release.attachments, state.documents, attached))
    if not was_tagged:
        registry.put_manifest(manifest, release.tag)
        if registry.digest(release.tag) != release.digest:
            raise DamagedContentError(
                f"{registry.repository}:{release.tag} is not {release.digest} although it was just put there"
            )
    return PublishResult(
        status=status,
        pushed=pushed,
        seconds=time.monotonic() - start,
        attached=tuple(item.name for item in attached),
        faults=faults if status is PublishStatus.REPAIRED else (),
    )


def require_own_tag(release: ImageRelease, state: PublicationState, inspector: ContentInspector) -> None:
    """Raise `KnowngoodError` when the tag of a release names another image, or cannot be read.

    An inspector that reads every byte allows a tag to be put back to an image that the registry has, and one that
    cannot be read to be put again.
    """
    registry = inspector.registry
    if inspector.depth is InspectionDepth.BYTES and (state.known or state.tagged is None):
        return
    if state.tag_fault:
        raise DamagedContentError(f"{registry.repository}:{release.tag}: {state.tag_fault}")
    if state.tagged not in (None, release.digest):
        hint = " (`--repair` puts the tag back to this image, which the registry has)" if state.known else ""
        raise KnowngoodError(
            f"{registry.repository}:{release.tag} is {state.tagged} already, this image is {release.digest}; a tag is "
            "never overwritten: the same lock made another image (base or recipe differ). "
            f"`--revision 2` publishes it beside the first{hint}"
        )


def move_alias(registry: Registry, alias: str, digest: str) -> bool:
    """Point an alias at an image in the repository, and return whether it had to be moved.

    An alias that names something that cannot be read is moved too.
    """
    with contextlib.suppress(DamagedContentError, UnservedContentError):
        if registry.digest(alias) == digest:
            return False
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} lost {digest} before {alias} could name it; run it again")
    registry.put_manifest(manifest, alias)
    if registry.digest(alias) != digest:
        raise DamagedContentError(f"{registry.repository}:{alias} is not {digest} although it was just put there")
    return True


def _send_image(
    release: ImageRelease, inspector: ContentInspector, image: ImageInspection, open_engine: Callable[[], Engine]
) -> tuple[RegistryManifest, int]:
    """Send the blobs and the manifest that are missing or damaged; return the manifest and the bytes sent."""
    if image.manifest and not image.faults:
        return image.manifest, 0
    engine = open_engine()
    manifest = image.manifest or image_transfer.read_engine_manifest(engine, release.image, release.digest)
    faults = image.faults if image.manifest else inspector.find_blob_faults(manifest)
    blobs = [fault.blob for fault in faults if fault.blob]
    pushed = image_transfer.send_blobs(inspector.registry, engine, release.image, blobs, inspector.notify)
    for blob in blobs:
        inspector.forget(blob.digest)
    if image.manifest is None:
        inspector.registry.put_manifest(manifest, release.digest)
    return manifest, pushed


def _check_what_was_sent(digest: str, inspector: ContentInspector) -> None:
    """Raise `DamagedContentError` when something is still missing or damaged after it was sent."""
    image = inspector.inspect_image(digest)
    documents = attachments.inspect_documents(inspector, digest)
    if faults := (*image.faults, *documents.faults):
        raise DamagedContentError(image_transfer.describe_kept_damage(inspector.registry.repository, faults))
