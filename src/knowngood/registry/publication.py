"""`knowngood publish`: push a proven image to a registry, staged by its digest and then promoted under its tag.

The order makes an interruption harmless at any moment: blobs, the manifest by digest, the attached documents, reading
everything back, and only then the tag that people pull. Aliases move when all tags are there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.errors import KnowngoodError
from knowngood.core.local_files import cache_folder, lock_folder
from knowngood.core.notify import Notify
from knowngood.engine import image_store
from knowngood.registry import attachments
from knowngood.registry.attachments import Attachment
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import MANIFEST_MEDIA_TYPE, DamagedContentError, Descriptor, RegistryManifest
from knowngood.registry.registry_client import Registry

if TYPE_CHECKING:
    from knowngood.engine.container_engine import Engine


class PublishStatus(StrEnum):
    """The outcome of publishing one release."""

    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    """The tag was there already with this digest."""
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
class PublishResult:
    """What happened to a release."""

    status: PublishStatus
    pushed: int = 0
    """Bytes that were sent; what the registry has already is not sent."""
    seconds: float = 0.0


def publish_release(
    release: ImageRelease,
    registry: Registry,
    engine: Engine,
    notify: Notify,
    sign: Callable[[Descriptor], object] | None = None,
) -> PublishResult:
    """Publish a release; `KnowngoodError` when its tag names another image, or when what is read back differs.

    `sign` is called for the manifest before the tag names it, and again for one that is published already.
    """
    start = time.monotonic()
    if tag_is_published(release, registry):
        proof = [item for item in release.attachments if sign or item.media in attachments.PROOF_MEDIA_TYPES]
        attachments.attach_missing(registry, release.digest, proof)
        if sign and (published := registry.manifest(release.digest)):
            sign(published.descriptor)
        return PublishResult(status=PublishStatus.UNCHANGED, seconds=time.monotonic() - start)
    pushed = 0
    manifest = registry.manifest(release.digest)
    if manifest is None:
        manifest, pushed = _push_missing_blobs(release, registry, engine, notify)
        registry.put_manifest(manifest, release.digest)
    notify("attaching SBOM, provenance, evidence and tier")
    attachments.attach_documents(registry, manifest.descriptor, release.attachments)
    check_published_image(registry, release.digest, release.labels, notify)
    if sign:
        sign(manifest.descriptor)
    if not tag_is_published(release, registry):
        registry.put_manifest(manifest, release.tag)
    if registry.digest(release.tag) != release.digest:
        raise DamagedContentError(
            f"{registry.repository}:{release.tag} is not {release.digest} although it was just put there"
        )
    return PublishResult(status=PublishStatus.PUBLISHED, pushed=pushed, seconds=time.monotonic() - start)


def move_alias(registry: Registry, alias: str, digest: str) -> bool:
    """Point an alias at an image in the repository, and return whether it had to be moved."""
    if registry.digest(alias) == digest:
        return False
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} lost {digest} before {alias} could name it; run it again")
    registry.put_manifest(manifest, alias)
    if registry.digest(alias) != digest:
        raise DamagedContentError(f"{registry.repository}:{alias} is not {digest} although it was just put there")
    return True


def check_published_image(
    registry: Registry, digest: str, labels: Mapping[str, str], notify: Notify
) -> RegistryManifest:
    """Compare what the registry serves with what was sent to it.

    Manifest, config and labels are read every time. A layer is read once on this machine for each repository: it is
    large, and since it is named by its digest, every client would notice a later change.
    """
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} does not have {digest}")
    config, *layers = manifest.blobs()
    actual = config_labels(registry.read(config))
    different = [
        f"{key} is {actual.get(key)!r}, not {value!r}" for key, value in labels.items() if actual.get(key) != value
    ]
    if different:
        raise KnowngoodError(f"{registry.repository}@{digest}: its label {'; '.join(different)}")
    for number, layer in enumerate(layers, 1):
        marker = _checked_marker(registry.repository, layer.digest)
        if not marker.exists():
            notify(f"reading back layer {number} of {len(layers)}, {layer.size / 1e6:,.1f} MB")
            registry.check(layer)
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        elif not registry.has(layer):
            raise KnowngoodError(f"{registry.repository} lost the layer {layer.digest}; run it again")
    return manifest


def config_labels(config: bytes) -> dict[str, str]:
    """Return the labels in the config of an image."""
    return dict(json.loads(config).get("config", {}).get("Labels") or {})


def tag_is_published(release: ImageRelease, registry: Registry) -> bool:
    """Return whether the tag is there already; `KnowngoodError` when it names another image."""
    digest = registry.digest(release.tag)
    if digest not in (None, release.digest):
        raise KnowngoodError(
            f"{registry.repository}:{release.tag} is {digest} already, this image is {release.digest}; a tag is never "
            "overwritten: the same lock made another image (base, recipe or suite differ). "
            "`--revision 2` publishes it beside the first"
        )
    return digest is not None


def _push_missing_blobs(
    release: ImageRelease, registry: Registry, engine: Engine, notify: Notify
) -> tuple[RegistryManifest, int]:
    """Send the blobs that the registry lacks; return the manifest, which is not put yet, and the bytes sent."""
    data = image_store.read_manifest_bytes(engine, release.image, release.digest)
    manifest = RegistryManifest(data=data, media=MANIFEST_MEDIA_TYPE)
    if manifest.descriptor.digest != release.digest:
        raise _damaged_store_error(release, release.digest, manifest.descriptor.digest)
    missing = {blob.digest: blob for blob in manifest.blobs() if not registry.has(blob)}
    total = sum(blob.size for blob in missing.values())
    sent = 0
    with _sending_folder() as folder:
        for path in image_store.iterate_blob_files(engine, release.image, list(missing), folder):
            with path.open("rb") as file:
                actual = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            blob = missing.get(f"sha256:{path.name}")
            if blob is None or actual != blob.digest:
                raise _damaged_store_error(release, path.name, actual)
            notify(f"pushing {blob.size / 1e6:,.1f} MB, {sent / 1e6:,.1f} of {total / 1e6:,.1f} MB done")
            _checked_marker(registry.repository, blob.digest).unlink(missing_ok=True)
            registry.put(blob, lambda path=path: path.open("rb"))  # type: ignore[misc]
            sent += blob.size
    return manifest, sent


def _damaged_store_error(release: ImageRelease, name: str, actual: str) -> KnowngoodError:
    return KnowngoodError(
        f"the engine's store is damaged: its blob {name} is {actual}; "
        f"remove the image with `docker rmi {release.image}` and build it again"
    )


@contextlib.contextmanager
def _sending_folder() -> Iterator[Path]:
    """Provide a folder for a blob while it is sent, for one run at a time; leftovers of a killed run are removed."""
    parent = cache_folder() / "publish" / "sending"
    with lock_folder(parent):
        for leftover in parent.glob("part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix="part-") as name:
            yield Path(name)


def _checked_marker(repository: Repository, digest: str) -> Path:
    """Return the path of the empty file that records that this machine has read this blob back."""
    return cache_folder() / "publish" / "seen" / repository.host / repository.path / digest.partition(":")[2]
