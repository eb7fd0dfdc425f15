"""Manifests and descriptors of the OCI image specification. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.registry.image_reference import DIGEST

MANIFEST_MEDIA_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_MEDIA_TYPE = "application/vnd.oci.image.index.v1+json"


class DamagedContentError(KnowngoodError):
    """A registry serves other bytes than those that were sent to it."""


class AbsentContentError(KnowngoodError):
    """The registry does not have what was requested."""


class UnservedContentError(MissingError):
    """The registry answers each request for one content with an error of its own, or breaks the answer off."""


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A blob or a manifest: media type, digest, size in bytes."""

    media: str
    digest: str
    size: int

    def document(self) -> dict[str, Any]:
        """Return the descriptor as a manifest contains it."""
        return {"mediaType": self.media, "digest": self.digest, "size": self.size}

    @classmethod
    def of(cls, data: bytes, media: str) -> Descriptor:
        """Return the descriptor of these bytes."""
        return cls(media=media, digest=f"sha256:{hashlib.sha256(data).hexdigest()}", size=len(data))

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Descriptor:
        """Read a descriptor of a manifest; `KnowngoodError` when its digest is not a sha256."""
        digest = str(document["digest"])
        if not DIGEST.fullmatch(digest):
            raise KnowngoodError(f"{digest!r} is not a sha256 digest, the only kind that is supported")
        return cls(media=str(document["mediaType"]), digest=digest, size=int(document["size"]))


@dataclass(frozen=True, kw_only=True)
class RegistryManifest:
    """A manifest with the exact bytes that a registry serves."""

    data: bytes
    media: str

    @property
    def descriptor(self) -> Descriptor:
        """Return the descriptor of the manifest itself."""
        return Descriptor.of(self.data, self.media)

    @cached_property
    def document(self) -> dict[str, Any]:
        """Return the manifest as JSON; `DamagedContentError` when it is not JSON."""
        try:
            return dict(json.loads(self.data))
        except (ValueError, TypeError):
            raise DamagedContentError(f"the manifest {self.descriptor.digest} is not JSON") from None

    def blobs(self) -> list[Descriptor]:
        """Return the descriptors of the config, then of the layers."""
        try:
            return [Descriptor.read(item) for item in (self.document["config"], *self.document["layers"])]
        except (KeyError, TypeError, ValueError):
            raise KnowngoodError(f"{self.descriptor.digest} is not the manifest of an image") from None
