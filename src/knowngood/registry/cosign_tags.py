"""The tags beside an image in which cosign, skopeo and podman look for signatures and attestations.

`sha256-<digest>.sig` and `sha256-<digest>.att` name manifests whose layers are small documents. Any number of writers
may add a document.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.registry.manifests import (
    MANIFEST_MEDIA_TYPE,
    DamagedContentError,
    Descriptor,
    RegistryManifest,
    UnservedContentError,
)

if TYPE_CHECKING:
    from knowngood.registry.registry_client import Registry

SIGNATURE_ANNOTATION = "dev.cosignproject.cosign/signature"
_CONFIG_MEDIA_TYPE = "application/vnd.oci.image.config.v1+json"
_LARGEST_DOCUMENT = 8 << 20
"""Bytes; a provenance has some 0.3 MB."""
_WRITE_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class CosignDocument:
    """One layer under such a tag."""

    media: str
    data: bytes
    annotations: Mapping[str, str]

    def layer(self) -> dict[str, Any]:
        """Return the layer as the manifest lists it."""
        return {**Descriptor.of(self.data, self.media).document(), "annotations": dict(self.annotations)}


def signature_tag(digest: str) -> str:
    """Return the tag of the signatures over a manifest."""
    return f"{digest.replace(':', '-')}.sig"


def attestation_tag(digest: str) -> str:
    """Return the tag of the attestations about a manifest."""
    return f"{digest.replace(':', '-')}.att"


def read_cosign_documents(registry: Registry, tag: str) -> Iterator[CosignDocument | str]:
    """Yield the documents under a tag; the reason for each that is damaged, and nothing where the tag is missing."""
    try:
        layers = _layers(registry.manifest(tag))
    except KnowngoodError as error:
        yield f"{tag}: {error}"
        return
    for layer in layers:
        try:
            blob = Descriptor.read(layer)
            annotations = {str(name): str(value) for name, value in (layer.get("annotations") or {}).items()}
            if blob.size > _LARGEST_DOCUMENT:
                yield f"{tag}: a document of {blob.size} bytes is too large"
            else:
                yield CosignDocument(media=blob.media, data=registry.read(blob), annotations=annotations)
        except (KnowngoodError, AttributeError, KeyError, TypeError, ValueError) as error:
            yield f"{tag}: a document cannot be read: {error}"


def add_cosign_document(registry: Registry, tag: str, document: CosignDocument) -> None:
    """Add a document under a tag, and read the tag again: another writer may have replaced it."""
    layer = document.layer()
    registry.put(Descriptor.of(document.data, document.media), lambda: contextlib.closing(io.BytesIO(document.data)))
    for _ in range(_WRITE_ATTEMPTS):
        try:
            present = _layers(registry.manifest(tag))
        except (DamagedContentError, UnservedContentError):
            present = []  # its signatures are lost; the list is begun anew
        if layer in present:
            return
        manifest = _tag_manifest(registry, [*present, layer])
        registry.put_manifest(manifest, tag)
    raise KnowngoodError(f"{registry.repository}:{tag}: other writers kept replacing it; run it again")


def _layers(manifest: RegistryManifest | None) -> list[dict[str, Any]]:
    layers = manifest.document.get("layers") if manifest else None
    return [layer for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []


def _tag_manifest(registry: Registry, layers: list[dict[str, Any]]) -> RegistryManifest:
    config = {
        "architecture": "",
        "os": "",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }
    blob = registry.put_bytes(json.dumps(config, separators=(",", ":")).encode(), _CONFIG_MEDIA_TYPE)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "config": blob.document(),
        "layers": layers,
    }
    data = json.dumps(document, separators=(",", ":")).encode()
    return RegistryManifest(data=data, media=MANIFEST_MEDIA_TYPE)
