"""Documents about an image, kept beside it in the registry as OCI referrers.

Each is a manifest of its own whose `subject` is the image. A registry that keeps no list of referrers gets one under
the tag that the specification names for it, `sha256-<the image's digest>`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.errors import KnowngoodError
from knowngood.registries.manifests import INDEX, MANIFEST, Descriptor, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from knowngood.registries.registry import Registry

SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"
EVIDENCE = "application/vnd.knowngood.evidence+json"

_EMPTY = "application/vnd.oci.empty.v1+json"
_TITLE = "org.opencontainers.image.title"
_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """One document."""

    media: str
    """Of the document, and the type of the artifact that carries it."""
    name: str
    """As a file."""
    data: bytes

    def document(self) -> dict[str, Any]:
        """What it says; `KnowngoodError` when it is not JSON."""
        try:
            return dict(json.loads(self.data))
        except (ValueError, TypeError):
            raise KnowngoodError(f"the attached {self.name} is not a JSON document") from None


def fallback_tag(digest: str) -> str:
    """Where the list of referrers is, in a registry that has no API for it."""
    return digest.replace(":", "-")


def attach(registry: Registry, subject: Descriptor, attachments: Iterable[Attachment]) -> None:
    """Push the documents and make them refer to the image; what is there already stays as it is."""
    listed = []
    tracked = True
    for item in attachments:
        manifest = _manifest(registry, subject, item)
        tracked &= registry.put_manifest(manifest, manifest.descriptor.digest)
        listed.append({**manifest.descriptor.document(), "artifactType": item.media})
    if listed and not tracked:
        _list(registry, subject.digest, listed)


def find(registry: Registry, digest: str) -> list[Attachment]:
    """The documents that are attached to the image, each checked against its digest."""
    found = []
    for entry in _entries(registry.referrers(digest) or registry.manifest(fallback_tag(digest))):
        described = Descriptor.read(entry)
        manifest = registry.manifest(described.digest)
        if manifest is None:
            raise KnowngoodError(f"{registry.repository} lists {described.digest} as attached, and does not have it")
        if manifest.document.get("subject", {}).get("digest") != digest:
            raise KnowngoodError(f"{described.digest} is listed as attached to {digest}, and says it is not")
        for layer in manifest.document["layers"]:
            blob = Descriptor.read(layer)
            name = str(layer.get("annotations", {}).get(_TITLE, blob.digest))
            found.append(Attachment(media=blob.media, name=name, data=registry.read(blob)))
    return found


def _manifest(registry: Registry, subject: Descriptor, item: Attachment) -> Manifest:
    config = registry.put_bytes(b"{}", _EMPTY)
    blob = registry.put_bytes(item.data, item.media)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": item.media,
        "config": config.document(),
        "layers": [{**blob.document(), "annotations": {_TITLE: item.name}}],
        "subject": subject.document(),
    }
    return Manifest(data=json.dumps(document, sort_keys=True, separators=(",", ":")).encode(), media=MANIFEST)


def _entries(index: Manifest | None) -> list[dict[str, Any]]:
    return [] if index is None else list(index.document.get("manifests") or [])


def _list(registry: Registry, digest: str, entries: list[dict[str, Any]]) -> None:
    """Add to the list under the fallback tag; read again afterwards, for another writer may have been faster."""
    tag = fallback_tag(digest)
    for _ in range(_TRIES):
        there = _entries(registry.manifest(tag))
        known = {entry["digest"] for entry in there}
        missing = [entry for entry in entries if entry["digest"] not in known]
        if not missing:
            return
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [*there, *missing]}
        data = json.dumps(index, sort_keys=True, separators=(",", ":")).encode()
        registry.put_manifest(Manifest(data=data, media=INDEX), tag)
    raise KnowngoodError(f"{registry.repository}:{tag} is written by others all the time; run it again")
