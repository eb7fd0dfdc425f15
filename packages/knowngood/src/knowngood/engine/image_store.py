"""The blobs of an engine's images (manifests, configurations, layers), and the import of a base.

The engine's API gives no blobs. Where its content store is a folder that this process can read, they are read there;
elsewhere `docker save` streams them. The BuildKit of an engine with the classic image store cannot read an OCI layout,
so there the base is imported as an image. Only the layer's content is imported: an image built on it has the same
files, but no manifest digest to compare.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from knowngood.core.errors import KnowngoodError
from knowngood.core.image_record import ImageBlob, ImageManifest
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.engine.container_engine import Engine

_CONTENT = "io.containerd.content.v1.content/blobs/sha256"
_SMALL = 4 << 20
"""Bytes: every manifest and configuration is smaller."""


def read_manifest(engine: Engine, tag: str, digest: str) -> ImageManifest:
    """Return the blobs that the manifest of an image lists; `digest` is the image's id.

    Raises:
        KnowngoodError: the engine's store keeps no manifests.
    """
    raw = read_manifest_bytes(engine, tag, digest)
    document: dict[str, Any] = json.loads(raw)
    return ImageManifest(
        manifest=ImageBlob(digest=digest, size=len(raw)),
        config=_parse_blob(document["config"]),
        layers=tuple(_parse_blob(layer) for layer in document["layers"]),
    )


def read_manifest_bytes(engine: Engine, tag: str, digest: str) -> bytes:
    """Return the exact bytes of an image's manifest."""
    if not engine.containerd_store:
        raise KnowngoodError(
            f"the engine at {engine.host} keeps no manifests, so there are no digests to record or compare; "
            "turn its containerd image store on, or use the embedded engine"
        )
    folder = _find_store(engine, digest)
    return _path(folder, digest).read_bytes() if folder else _read_saved(engine, tag, {digest})[digest]


def iterate_blob_files(engine: Engine, tag: str, digests: Collection[str], scratch: Path) -> Iterator[Path]:
    """Yield files with the bytes of these blobs of an image, in any order.

    A file may lie in `scratch`, and is removed before the next one.
    """
    wanted = set(digests)
    for digest in digests:
        if folder := _find_store(engine, digest):
            wanted.remove(digest)
            yield _path(folder, digest)
    for digest, member in _saved_blobs(engine, tag) if wanted else ():
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


def find_blob_file(engine: Engine, tag: str, digest: str, scratch: Path) -> Path:
    """Return a file with the bytes of a blob of an image; it lies in `scratch` where `docker save` is needed.

    Raises:
        KnowngoodError: the engine does not have it.
    """
    if folder := _find_store(engine, digest):
        return _path(folder, digest)
    for member_digest, member in _saved_blobs(engine, tag):
        if member_digest == digest:
            path = scratch / digest.removeprefix("sha256:")
            with path.open("wb") as file:
                shutil.copyfileobj(member, file)
            return path
    raise KnowngoodError(f"the engine at {engine.host} has no blob {digest} of {tag}")


def find_image_id(engine: Engine, name: str) -> str | None:
    """Return the id of the image with a name, `None` when the engine has none."""
    from docker.errors import ImageNotFound

    with container_engine.docker_client(engine) as client:
        try:
            return str(client.images.get(name).id)
        except ImageNotFound:
            return None


def pull_image(  # noqa: PLR0913, PLR0917
    engine: Engine, repository: str, digest: str, name: str | None, size: int, notify: Notify
) -> str:
    """Let the engine pull an image by its digest, give it a name (`repository:tag`) if wanted, and return its id.

    `notify` hears after each twentieth of `size`, in bytes, how much is here; layers that the engine has do not count.

    Raises:
        KnowngoodError: the engine cannot pull it; `MissingError` where its disk is full.
    """
    arrived: dict[str, int] = {}
    reported = 0
    with container_engine.docker_client(engine) as client:
        for event in client.api.pull(repository, tag=digest, stream=True, decode=True):
            if error := event.get("error"):  # the SDK's own `images.pull` passes over it
                raise container_engine.refusal_error(engine, str(error))
            if event.get("status") == "Downloading":
                arrived[event["id"]] = event.get("progressDetail", {}).get("current", 0)
            if (done := sum(arrived.values())) - reported >= size / 20:
                reported = done
                notify(f"pulling, {done / 1e6:,.1f} of {size / 1e6:,.1f} MB done")
        image = client.images.get(f"{repository}@{digest}")
        if name:
            image.tag(*name.split(":", 1))
        return str(image.id)


def _parse_blob(descriptor: dict[str, Any]) -> ImageBlob:
    return ImageBlob(digest=str(descriptor["digest"]), size=int(descriptor["size"]))


def _find_store(engine: Engine, digest: str) -> Path | None:
    """Return the content store that has this blob, if it is on this machine and can be read."""
    if not engine.host.startswith("unix://"):
        return None
    roots = [Path("/var/lib/docker/containerd/daemon"), Path("/var/lib/containerd")]
    if engine.embedded:  # this process may use another cache folder now
        roots = [Path(engine.env["DOCKER_CONFIG"]).parent / "data/containerd/daemon"]
    for root in roots:
        with contextlib.suppress(OSError):  # this process may not read it
            if _path(root / _CONTENT, digest).is_file():
                return root / _CONTENT
    return None


def _path(folder: Path, digest: str) -> Path:
    return folder / digest.removeprefix("sha256:")


def _read_saved(engine: Engine, tag: str, digests: Collection[str]) -> dict[str, bytes]:
    blobs: dict[str, bytes] = {}
    for digest, member in _saved_blobs(engine, tag):
        if digest in digests:
            blobs[digest] = member.read(_SMALL)
        if len(blobs) == len(digests):
            return blobs
    raise KnowngoodError(f"the engine at {engine.host} does not give {', '.join(set(digests) - set(blobs))} of {tag}")


def _saved_blobs(engine: Engine, tag: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the digest and the content of each blob in `docker save`."""
    with container_engine.docker_client(engine) as client:
        stream = _BlockReader(client.images.get(tag).save())
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                if member.name.startswith("blobs/sha256/") and (content := archive.extractfile(member)):
                    yield "sha256:" + member.name.rpartition("/")[2], content


class _BlockReader:
    """An iterator of blocks that can be read like a file."""

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


_LAYOUT = "oci-layout://"


def import_base_layout(engine: Engine, address: str) -> str:
    """Return `address`; where it names an OCI layout of one layer, import it and return the address of the image."""
    if not address.startswith(_LAYOUT):
        return address
    layout, _, digest = address.removeprefix(_LAYOUT).rpartition("@")
    name = f"knowngood-base:{digest.removeprefix('sha256:')[:24]}"
    with container_engine.docker_client(engine) as client:
        if not client.images.list(name=name):
            manifest = _read_layout_blob(layout, digest)
            config = _read_layout_blob(layout, manifest["config"]["digest"])["config"]
            (layer,) = manifest["layers"]
            changes = [f"ENV {item}" for item in config.get("Env", [])]
            changes += [f"CMD {json.dumps(config['Cmd'])}"] if config.get("Cmd") else []
            repository, _, tag = name.partition(":")
            client.api.import_image_from_file(
                str(_layout_blob_path(layout, layer["digest"])), repository, tag, changes=changes
            )
    return f"docker-image://{name}"


def _layout_blob_path(layout: str, digest: str) -> Path:
    return Path(layout) / "blobs" / digest.replace(":", "/")


def _read_layout_blob(layout: str, digest: str) -> Any:
    return json.loads(_layout_blob_path(layout, digest).read_bytes())
