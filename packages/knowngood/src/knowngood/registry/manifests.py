"""Manifests, descriptors and configurations of the OCI image specification, and what must hold of them. Pure.

Whatever a registry serves is a stranger's document until it is parsed here: the types of what is read of it are
checked, and a manifest that one client takes for an image and another one for an index is refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import NotRequired, TypedDict

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.json_document import parse_foreign_json
from knowngood.registry.image_reference import DIGEST

MANIFEST_MEDIA_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_MEDIA_TYPE = "application/vnd.oci.image.index.v1+json"
_DOCKER_TYPE = "application/vnd.docker.distribution.manifest."
SERVED_MEDIA_TYPES = (MANIFEST_MEDIA_TYPE, INDEX_MEDIA_TYPE, f"{_DOCKER_TYPE}v2+json", f"{_DOCKER_TYPE}list.v2+json")
"""The manifests that a registry is asked for. Only the first two are published by this program."""
CONFIG_MEDIA_TYPE = "application/vnd.oci.image.config.v1+json"
_INDEX_MEDIA_TYPES = SERVED_MEDIA_TYPES[1::2]
_LAYER_PREFIX = "application/vnd.oci.image.layer."


class _Platform(TypedDict):
    os: str
    architecture: str


class DescriptorDocument(TypedDict):
    """A descriptor as a manifest or an index contains it."""

    mediaType: str
    digest: str
    size: int
    artifactType: NotRequired[str]
    annotations: NotRequired[dict[str, str] | None]
    platform: NotRequired[_Platform | None]


class ManifestDocument(TypedDict):
    """A manifest or an index: what is read of it."""

    mediaType: NotRequired[str]
    artifactType: NotRequired[str]
    config: NotRequired[DescriptorDocument]
    layers: NotRequired[list[DescriptorDocument]]
    manifests: NotRequired[list[DescriptorDocument] | None]
    subject: NotRequired[DescriptorDocument | None]
    annotations: NotRequired[dict[str, str] | None]


class _RunConfiguration(TypedDict):
    Labels: NotRequired[dict[str, str] | None]
    Env: NotRequired[list[str] | None]


class ImageConfiguration(TypedDict):
    """The configuration of an image: what is read of it."""

    architecture: NotRequired[str]
    os: NotRequired[str]
    config: NotRequired[_RunConfiguration | None]


def parse_image_configuration(data: bytes) -> ImageConfiguration:
    """Parse the configuration of an image; `KnowngoodError` when it is none."""
    return parse_foreign_json(data, "the configuration of the image is malformed", ImageConfiguration)


def parse_image_labels(data: bytes) -> dict[str, str]:
    """Return the labels in the configuration of an image; `KnowngoodError` when it is none."""
    return dict((parse_image_configuration(data).get("config") or {}).get("Labels") or {})


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

    def document(self) -> DescriptorDocument:
        """Return the descriptor as a manifest contains it."""
        return {"mediaType": self.media, "digest": self.digest, "size": self.size}

    @classmethod
    def of(cls, data: bytes, media: str) -> Descriptor:
        """Return the descriptor of these bytes."""
        return cls(media=media, digest=f"sha256:{hashlib.sha256(data).hexdigest()}", size=len(data))

    @classmethod
    def read(cls, document: DescriptorDocument) -> Descriptor:
        """Read a descriptor of a manifest; `KnowngoodError` when its digest is not a sha256, or its size no size."""
        digest, size = document["digest"], document["size"]
        if not DIGEST.fullmatch(digest):
            raise KnowngoodError(f"{digest[:100]!r} is not a sha256 digest, the only kind that is supported")
        if not 0 <= size < 1 << 53:
            raise KnowngoodError(f"{digest} cannot have {size} bytes")
        return cls(media=document["mediaType"], digest=digest, size=size)


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
    def document(self) -> ManifestDocument:
        """Return the manifest as JSON values of the types above.

        Raises `DamagedContentError` when it is none, or when it says that it is another kind than it is served as.
        """
        what = f"the manifest {self.descriptor.digest} is malformed"
        try:
            document = parse_foreign_json(self.data, what, ManifestDocument)
        except KnowngoodError as error:
            raise DamagedContentError(str(error)) from None
        if document.get("mediaType", self.media) != self.media:
            raise DamagedContentError(f"{what}: it is a {document['mediaType'][:100]} and served as {self.media[:100]}")
        if ("manifests" in document) != self.is_index or (self.is_index and document.keys() & {"config", "layers"}):
            raise DamagedContentError(f"{what}: a client may take it for an image, and another one for an index")
        return document

    @property
    def is_index(self) -> bool:
        """Whether it lists the images of several hosts."""
        return self.media in _INDEX_MEDIA_TYPES

    @property
    def subject(self) -> str | None:
        """The digest of the image that it is a document about; `None` when it is about none."""
        subject = self.document.get("subject")
        return subject["digest"] if subject else None

    def blobs(self) -> list[Descriptor]:
        """Return the descriptors of the config, then of the layers; `KnowngoodError` when it is an index."""
        try:
            return [Descriptor.read(item) for item in (self.document["config"], *self.document["layers"])]
        except KeyError:
            raise KnowngoodError(f"{self.descriptor.digest} is not the manifest of an image") from None

    def require_image(self, name: str) -> Descriptor:
        """Return the descriptor of the configuration of an image that an engine can run.

        Raises `KnowngoodError` when it is anything else: an index, or a document about an image, which is signed too.
        """
        if self.media == MANIFEST_MEDIA_TYPE:
            config, *layers = self.blobs()
            proper = config.media == CONFIG_MEDIA_TYPE and all(item.media.startswith(_LAYER_PREFIX) for item in layers)
            if proper and layers and not self.subject and "artifactType" not in self.document:
                return config
        kind = "an index" if self.is_index else self.document.get("artifactType") or self.media
        raise KnowngoodError(f"{name} is no image of a cell, but {kind[:100]}")
