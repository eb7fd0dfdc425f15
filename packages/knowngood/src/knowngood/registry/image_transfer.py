"""Send blobs of an image from the engine to a registry, and read back what arrived."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.errors import KnowngoodError
from knowngood.core.local_files import cache_folder, lock_folder
from knowngood.core.notify import Notify
from knowngood.engine import image_store
from knowngood.registry.content_inspection import ContentFault, ContentInspector
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import (
    MANIFEST_MEDIA_TYPE,
    DamagedContentError,
    Descriptor,
    RegistryManifest,
    parse_image_labels,
)
from knowngood.registry.registry_client import Registry

if TYPE_CHECKING:
    from knowngood.engine.container_engine import Engine


def read_engine_manifest(engine: Engine, image: str, digest: str) -> RegistryManifest:
    """Return the manifest of an image of the engine; `KnowngoodError` when the engine keeps other bytes."""
    manifest = RegistryManifest(data=image_store.read_manifest_bytes(engine, image, digest), media=MANIFEST_MEDIA_TYPE)
    if manifest.descriptor.digest != digest:
        raise _damaged_store_error(image, digest, manifest.descriptor.digest)
    return manifest


def send_blobs(registry: Registry, engine: Engine, image: str, blobs: Collection[Descriptor], notify: Notify) -> int:
    """Send blobs of an image of the engine, each checked against its digest before, and return the bytes sent."""
    wanted = {blob.digest: blob for blob in blobs}
    total = sum(blob.size for blob in wanted.values())
    sent = 0
    with _sending_folder() as folder:
        for path in image_store.iterate_blob_files(engine, image, list(wanted), folder):
            with path.open("rb") as file:
                actual = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            blob = wanted.get(f"sha256:{path.name}")
            if blob is None or actual != blob.digest:
                raise _damaged_store_error(image, path.name, actual)
            notify(f"pushing {blob.size / 1e6:,.1f} MB, {sent / 1e6:,.1f} of {total / 1e6:,.1f} MB done")
            _checked_marker(registry.repository, blob.digest).unlink(missing_ok=True)
            registry.put(blob, lambda path=path: path.open("rb"))  # type: ignore[misc]
            sent += blob.size
    return sent


def check_published_image(inspector: ContentInspector, digest: str, labels: Mapping[str, str]) -> None:
    """Compare what the registry serves with what was sent to it.

    Manifest, config and labels are read every time. A layer is read once on this machine for each repository, and
    again after it was sent; otherwise its presence and size are looked at. An inspector that reads every byte reads it
    every time.

    Raises `KnowngoodError` when something is missing or differs.
    """
    registry = inspector.registry
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} does not have {digest}")
    config, *layers = manifest.blobs()
    actual = parse_image_labels(registry.read(config))
    different = [
        f"{key} is {actual.get(key)!r}, not {value!r}" for key, value in labels.items() if actual.get(key) != value
    ]
    if different:
        raise KnowngoodError(f"{registry.repository}@{digest}: its label {'; '.join(different)}")
    unread = [layer for layer in layers if not _checked_marker(registry.repository, layer.digest).exists()]
    reasons = inspector.find_reasons(layers) | inspector.read_every_byte().find_reasons(unread)
    if damaged := [f"{layer} {reason}" for layer, reason in reasons.items() if reason]:
        raise DamagedContentError(f"{registry.repository}@{digest}: {'; '.join(damaged)}; run `publish --repair`")
    for layer in unread:
        marker = _checked_marker(registry.repository, layer.digest)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def describe_kept_damage(repository: Repository, faults: Collection[ContentFault]) -> str:
    """Return what an operator must do about contents that stay damaged although they were sent again."""
    text = (
        f"{repository} keeps what is damaged, although it was sent again: it takes no other bytes for a digest that it "
        "has. On its own machine, remove these from its storage, then run `publish --repair` again:"
    )
    for fault in faults:
        name = fault.digest.partition(":")[2]
        text += f"\n  {fault}: docker/registry/v2/blobs/sha256/{name[:2]}/{name}/ in the layout of `distribution`"
    return text


def _damaged_store_error(image: str, name: str, actual: str) -> KnowngoodError:
    return KnowngoodError(
        f"the engine's store is damaged: its blob {name} is {actual}; "
        f"remove the image with `docker rmi {image}` and build it again"
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
