"""Manifests, and the descriptors of what they name, as the OCI image specification has them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from knowngood.errors import KnowngoodError
from knowngood.registries.reference import DIGEST

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class SpoiltError(KnowngoodError):
    """The registry serves other bytes than those it was given."""


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A blob or a manifest by its content."""

    media: str
    digest: str
    size: int

    def document(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return {"mediaType": self.media, "digest": self.digest, "size": self.size}

    @classmethod
    def of(cls, data: bytes, media: str) -> Descriptor:
        """The descriptor of these bytes."""
        return cls(media=media, digest=f"sha256:{hashlib.sha256(data).hexdigest()}", size=len(data))

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Descriptor:
        """From a manifest."""
        digest = str(document["digest"])
        if not DIGEST.fullmatch(digest):
            raise KnowngoodError(f"{digest!r} is not a digest that is read here (sha256)")
        return cls(media=str(document["mediaType"]), digest=digest, size=int(document["size"]))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest as a registry serves it."""

    data: bytes
    media: str

    @property
    def descriptor(self) -> Descriptor:
        """Of these very bytes."""
        return Descriptor.of(self.data, self.media)

    @cached_property
    def document(self) -> dict[str, Any]:
        """What it says."""
        try:
            return dict(json.loads(self.data))
        except (ValueError, TypeError):
            raise SpoiltError(f"the manifest {self.descriptor.digest} is not JSON") from None

    def blobs(self) -> list[Descriptor]:
        """Config first, then the layers."""
        try:
            return [Descriptor.read(item) for item in (self.document["config"], *self.document["layers"])]
        except (KeyError, TypeError, ValueError):
            raise KnowngoodError(f"{self.descriptor.digest} is not the manifest of an image") from None
