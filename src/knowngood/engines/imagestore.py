"""The blobs of an engine's images: manifests, configurations, layers.

The engine's API shows none of them. Where its content store is a folder that can be read here, they are read there;
elsewhere `docker save` streams them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from knowngood.building.record import Blob, Manifest
from knowngood.engines import sdk
from knowngood.errors import KnowngoodError

if TYPE_CHECKING:
    from knowngood.engines.engine import Engine

_CONTENT = "io.containerd.content.v1.content/blobs/sha256"
_SMALL = 4 << 20
"""Bytes that no manifest or configuration reaches, and every layer worth a second look exceeds."""


def manifest(engine: Engine, tag: str, digest: str) -> Manifest:
    """The manifest of an image of the engine; `digest` is its id.

    Raises `KnowngoodError` where the engine's store keeps no manifests.
    """
    raw = manifest_bytes(engine, tag, digest)
    document: dict[str, Any] = json.loads(raw)
    return Manifest(
        manifest=Blob(digest=digest, size=len(raw)),
        config=_blob(document["config"]),
        layers=tuple(_blob(layer) for layer in document["layers"]),
    )


def manifest_bytes(engine: Engine, tag: str, digest: str) -> bytes:
    """The very bytes of the manifest."""
    if not engine.containerd_store:
        raise KnowngoodError(
            f"the engine at {engine.host} keeps no manifests, so there are no digests to record or compare; "
            "turn its containerd image store on, or use the embedded engine"
        )
    folder = _folder(engine, digest)
    return _path(folder, digest).read_bytes() if folder else _saved(engine, tag, {digest})[digest]


def files(engine: Engine, tag: str, digests: Collection[str], scratch: Path) -> Iterator[Path]:
    """Files with the bytes of these blobs of an image, in any order; one in `scratch` is there until the next."""
    wanted = set(digests)
    for digest in digests:
        if folder := _folder(engine, digest):
            wanted.remove(digest)
            yield _path(folder, digest)
    for digest, member in _members(engine, tag) if wanted else ():
        if digest in wanted:
            wanted.remove(digest)
            path = scratch / digest.removeprefix("sha256:")
            with path.open("wb") as file:
                shutil.copyfileobj(member, file)
            yield path
            path.unlink()
        if not wanted:
            return
    if wanted:
        raise KnowngoodError(f"the engine at {engine.host} does not give {', '.join(sorted(wanted))} of {tag}")


def blob(engine: Engine, tag: str, digest: str, scratch: Path) -> Path:
    """A file with the bytes of a blob of an image; in `scratch`, where `docker save` had to write it."""
    if folder := _folder(engine, digest):
        return _path(folder, digest)
    for found, member in _members(engine, tag):
        if found == digest:
            path = scratch / digest.removeprefix("sha256:")
            with path.open("wb") as file:
                shutil.copyfileobj(member, file)
            return path
    raise KnowngoodError(f"the engine at {engine.host} has no blob {digest} of {tag}")


def _blob(described: dict[str, Any]) -> Blob:
    return Blob(digest=str(described["digest"]), size=int(described["size"]))


def _folder(engine: Engine, digest: str) -> Path | None:
    """The content store that has this blob, if it is on this machine and can be read."""
    if not engine.host.startswith("unix://"):
        return None
    roots = [Path("/var/lib/docker/containerd/daemon"), Path("/var/lib/containerd")]
    if engine.embedded:  # which may be that of another cache folder than this process uses now
        roots = [Path(engine.env["DOCKER_CONFIG"]).parent / "data/containerd/daemon"]
    for root in roots:
        with contextlib.suppress(OSError):  # not ours to read
            if _path(root / _CONTENT, digest).is_file():
                return root / _CONTENT
    return None


def _path(folder: Path, digest: str) -> Path:
    return folder / digest.removeprefix("sha256:")


def _saved(engine: Engine, tag: str, digests: Collection[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for digest, member in _members(engine, tag):
        if digest in digests:
            found[digest] = member.read(_SMALL)
        if len(found) == len(digests):
            return found
    raise KnowngoodError(f"the engine at {engine.host} does not give {', '.join(set(digests) - set(found))} of {tag}")


def _members(engine: Engine, tag: str) -> Iterator[tuple[str, IO[bytes]]]:
    """The blobs of `docker save`, one after the other."""
    with sdk.client(engine) as client:
        stream = _Stream(client.images.get(tag).save())
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                if member.name.startswith("blobs/sha256/") and (content := archive.extractfile(member)):
                    yield "sha256:" + member.name.rpartition("/")[2], content


class _Stream:
    """An iterator of blocks, read like a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def read(self, size: int) -> bytes:
        parts = [self._rest]
        have = len(self._rest)
        while have < size and (block := next(self._blocks, b"")):
            parts.append(block)
            have += len(block)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]
