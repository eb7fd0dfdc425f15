"""`knowngood publish`: a proven image into a registry, staged by its digest, then promoted under its tag.

The order is what makes a stop at any moment harmless: blobs, the manifest by digest, what is attached to it, everything
read back, and only then the tag that people pull. Aliases move when all tags stand.
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

from knowngood.engines import imagestore
from knowngood.errors import KnowngoodError
from knowngood.paths import cache_dir, locked
from knowngood.registries import attachments
from knowngood.registries.attachments import Attachment
from knowngood.registries.manifests import MANIFEST, Manifest, SpoiltError
from knowngood.registries.reference import Repository
from knowngood.registries.registry import Registry

if TYPE_CHECKING:
    from knowngood.engines.engine import Engine

Say = Callable[[str], None]


class Status(StrEnum):
    """How a release came out."""

    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    """Its tag stood there with this very digest."""
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Release:
    """A proven image, ready to be published."""

    cell: str
    image: str
    """The image's name in the engine."""
    digest: str
    tag: str
    labels: Mapping[str, str]
    """What the image must say of itself."""
    attachments: tuple[Attachment, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a release."""

    status: Status
    pushed: int = 0
    """Bytes sent; what the registry had is not sent."""
    seconds: float = 0.0


def publish(release: Release, registry: Registry, engine: Engine, say: Say) -> Result:
    """Publish a release. Raises `KnowngoodError` when its tag is of another image, or what is read back differs."""
    start = time.monotonic()
    if standing(release, registry):
        return Result(status=Status.UNCHANGED, seconds=time.monotonic() - start)
    pushed = 0
    manifest = registry.manifest(release.digest)
    if manifest is None:
        manifest, pushed = _push(release, registry, engine, say)
        registry.put_manifest(manifest, release.digest)
    say("attaching SBOM, provenance and evidence")
    attachments.attach(registry, manifest.descriptor, release.attachments)
    read_back(registry, release.digest, release.labels, say)
    if not standing(release, registry):
        registry.put_manifest(manifest, release.tag)
    if registry.digest(release.tag) != release.digest:
        raise SpoiltError(f"{registry.repository}:{release.tag} is not {release.digest} after it was put there")
    return Result(status=Status.PUBLISHED, pushed=pushed, seconds=time.monotonic() - start)


def move(registry: Registry, alias: str, digest: str) -> bool:
    """Let an alias name an image that is there; returns whether it had to be moved."""
    if registry.digest(alias) == digest:
        return False
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} lost {digest} before {alias} could name it; run it again")
    registry.put_manifest(manifest, alias)
    if registry.digest(alias) != digest:
        raise SpoiltError(f"{registry.repository}:{alias} is not {digest} after it was put there")
    return True


def read_back(registry: Registry, digest: str, labels: Mapping[str, str], say: Say) -> Manifest:
    """Compare what the registry serves with what it was given.

    Manifest, config and labels each time; a layer once for this machine and repository, for it is large and, having a
    digest, cannot be changed later without every client noticing.
    """
    manifest = registry.manifest(digest)
    if manifest is None:
        raise KnowngoodError(f"{registry.repository} does not have {digest}")
    config, *layers = manifest.blobs()
    found = labels_of(registry.read(config))
    different = [
        f"{key} is {found.get(key)!r}, not {value!r}" for key, value in labels.items() if found.get(key) != value
    ]
    if different:
        raise KnowngoodError(f"{registry.repository}@{digest}: its label {'; '.join(different)}")
    for number, layer in enumerate(layers, 1):
        mark = _seen(registry.repository, layer.digest)
        if not mark.exists():
            say(f"reading layer {number} of {len(layers)} back, {layer.size / 1e6:,.1f} MB")
            registry.check(layer)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        elif not registry.has(layer):
            raise KnowngoodError(f"{registry.repository} lost the layer {layer.digest}; run it again")
    return manifest


def labels_of(config: bytes) -> dict[str, str]:
    """The labels in an image's config."""
    return dict(json.loads(config).get("config", {}).get("Labels") or {})


def standing(release: Release, registry: Registry) -> bool:
    """Whether the tag is there already; raises `KnowngoodError` when it is of another image."""
    there = registry.digest(release.tag)
    if there not in (None, release.digest):
        raise KnowngoodError(
            f"{registry.repository}:{release.tag} is {there} already, this image is {release.digest}; a tag is never "
            "overwritten: the same lock made another image (base, recipe or suite differ), "
            "--revision 2 publishes it as such"
        )
    return there is not None


def _push(release: Release, registry: Registry, engine: Engine, say: Say) -> tuple[Manifest, int]:
    """Send what the registry lacks of the image; returns its manifest, not yet put, and the bytes sent."""
    data = imagestore.manifest_bytes(engine, release.image, release.digest)
    manifest = Manifest(data=data, media=MANIFEST)
    if manifest.descriptor.digest != release.digest:
        raise _damaged(release, release.digest, manifest.descriptor.digest)
    missing = {blob.digest: blob for blob in manifest.blobs() if not registry.has(blob)}
    total = sum(blob.size for blob in missing.values())
    sent = 0
    with _folder() as folder:
        for path in imagestore.files(engine, release.image, list(missing), folder):
            with path.open("rb") as file:
                found = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            blob = missing.get(f"sha256:{path.name}")
            if blob is None or found != blob.digest:
                raise _damaged(release, path.name, found)
            say(f"pushing {blob.size / 1e6:,.1f} MB, {sent / 1e6:,.1f} of {total / 1e6:,.1f} MB are there")
            _seen(registry.repository, blob.digest).unlink(missing_ok=True)
            registry.put(blob, lambda path=path: path.open("rb"))  # type: ignore[misc]
            sent += blob.size
    return manifest, sent


def _damaged(release: Release, name: str, found: str) -> KnowngoodError:
    return KnowngoodError(
        f"the engine's store is damaged: its blob {name} is {found}; "
        f"remove the image with `docker rmi {release.image}` and build it again"
    )


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Where a blob may lie while it is sent: one run of this machine at a time, and without what a killed one left."""
    parent = cache_dir() / "publish" / "sending"
    with locked(parent):
        for leftover in parent.glob("part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix="part-") as name:
            yield Path(name)


def _seen(repository: Repository, digest: str) -> Path:
    """A file that stands for "this machine has read this blob back from there"."""
    return cache_dir() / "publish" / "seen" / repository.host / repository.path / digest.partition(":")[2]
