"""Look at what a registry has of an image: at presence and size, or at every byte.

A registry that is asked whether it has a blob answers from its records; only reading shows that a file was changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from knowngood.core.notify import Notify
from knowngood.registry.manifests import (
    AbsentContentError,
    DamagedContentError,
    Descriptor,
    RegistryManifest,
    UnservedContentError,
)

if TYPE_CHECKING:
    from knowngood.registry.registry_client import Registry

_REQUESTS_AT_ONCE = 8


class InspectionDepth(StrEnum):
    """How closely contents are looked at."""

    SIZE = "presence and size"
    """One byte of each blob is read, the last. Manifests are read whole."""
    BYTES = "every byte"


@dataclass(frozen=True, kw_only=True)
class ContentFault:
    """One content of a published image that the registry does not have as it was sent."""

    content: str
    """What it is, for people: `layer 3`, `provenance.intoto.json`."""
    digest: str
    reason: str
    blob: Descriptor | None = None
    """The blob that is missing or damaged; `None` for a manifest."""

    def __str__(self) -> str:
        return f"{self.content} ({self.digest}) {self.reason}"


@dataclass(frozen=True, kw_only=True)
class ImageInspection:
    """What a registry has of an image, without the documents about it."""

    manifest: RegistryManifest | None
    """`None` when it is missing or damaged; then nothing is known about the blobs."""
    faults: tuple[ContentFault, ...]

    @property
    def blobs(self) -> int:
        """How many blobs were looked at."""
        return len(self.manifest.blobs()) if self.manifest else 0


@dataclass(kw_only=True)
class ContentInspector:
    """Looks at contents of one repository, and at each blob once, in however many images it is."""

    registry: Registry
    depth: InspectionDepth
    notify: Notify
    _reasons: dict[str, str | None] = field(default_factory=dict)

    def inspect_image(self, digest: str) -> ImageInspection:
        """Look at the manifest, the config and the layers of an image."""
        manifest, reason = self.read_manifest(digest)
        if manifest is None:
            return ImageInspection(
                manifest=None, faults=(ContentFault(content="the manifest", digest=digest, reason=reason),)
            )
        return ImageInspection(manifest=manifest, faults=tuple(self.find_blob_faults(manifest)))

    def read_manifest(self, reference: str) -> tuple[RegistryManifest | None, str]:
        """Return the manifest under a tag or digest, or `None` with the reason why it cannot be read."""
        try:
            manifest = self.registry.manifest(reference)
        except (DamagedContentError, UnservedContentError) as error:
            return None, _describe_reason(error)
        return manifest, "" if manifest else "is missing"

    def find_blob_faults(self, manifest: RegistryManifest) -> list[ContentFault]:
        """Return which blobs of a manifest are missing or damaged."""
        blobs = manifest.blobs()
        names = ["the config", *(f"layer {number} of {len(blobs) - 1}" for number in range(1, len(blobs)))]
        reasons = self.find_reasons(blobs)
        return [
            ContentFault(content=name, digest=blob.digest, reason=reason, blob=blob)
            for name, blob in zip(names, blobs, strict=True)
            if (reason := reasons[blob.digest])
        ]

    def find_reasons(self, blobs: Sequence[Descriptor]) -> dict[str, str | None]:
        """Return digest -> what is wrong with the blob, or `None`."""
        wanted = list({blob.digest: blob for blob in blobs if blob.digest not in self._reasons}.values())
        if self.depth is InspectionDepth.SIZE:
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
                present = pool.map(self.registry.has, wanted)
                reasons = [None if each else "is missing or does not have its size" for each in present]
        else:
            reasons = [self._read_blob(blob) for blob in wanted]
        self._reasons |= dict(zip([blob.digest for blob in wanted], reasons, strict=True))
        return {blob.digest: self._reasons[blob.digest] for blob in blobs}

    def read_every_byte(self) -> ContentInspector:
        """Return the inspector itself if it reads every byte, otherwise one that does."""
        if self.depth is InspectionDepth.BYTES:
            return self
        return ContentInspector(registry=self.registry, depth=InspectionDepth.BYTES, notify=self.notify)

    def forget(self, digest: str) -> None:
        """Look at this blob again when it is next asked for, because it was sent."""
        self._reasons.pop(digest, None)

    def _read_blob(self, blob: Descriptor) -> str | None:
        self.notify(f"reading {blob.digest[7:19]}, {blob.size / 1e6:,.1f} MB")
        try:
            self.registry.check(blob)
        except (AbsentContentError, DamagedContentError, UnservedContentError) as error:
            return _describe_reason(error)
        return None


def _describe_reason(error: Exception) -> str:
    if isinstance(error, AbsentContentError):
        return "is missing"
    if isinstance(error, DamagedContentError):
        return "is damaged: the registry serves other bytes"
    return "cannot be read: the registry fails each time"
