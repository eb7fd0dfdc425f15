"""OCI image layouts of one layer, written so that the same files give the same bytes."""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import json
import subprocess
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

from knowngood.errors import KnowngoodError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_MEDIA = "application/vnd.oci.image"
_BLOCK = 1 << 20


class _Hashed:
    """A file that is written on to another and hashed on the way."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._target.write(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def dropped(name: str, patterns: Iterable[str]) -> bool:
    """Whether a path (no leading slash) matches a pattern; `!pattern` afterwards keeps what it matches."""
    verdict = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!")):
            verdict = not pattern.startswith("!")
    return verdict


def normalize(source: Path, target: IO[bytes], *, drop: Sequence[str], epoch: int) -> str:
    """Copy a tar file: sorted, without what `drop` matches, no time after `epoch`; returns its sha256 digest.

    Owners are kept by number; extended attributes and access times are not kept.
    """
    hashed = _Hashed(target)
    with (
        tarfile.open(source, "r:") as old,
        tarfile.open(fileobj=hashed, mode="w|", format=tarfile.GNU_FORMAT, bufsize=_BLOCK) as new,  # type: ignore[call-overload]
    ):
        members = {name: member for member in old if (name := _plain(member.name))}
        first: dict[str, str] = {}  # of each file with hard links: the name that stands first in the output
        for name, member in sorted(members.items(), key=lambda item: item[0].split("/")):
            if dropped(name, drop):
                continue
            file = _plain(member.linkname) if member.islnk() else name
            content = members[file]
            entry = copy.copy(content)
            entry.name = name
            if first.setdefault(file, name) != name:
                entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, first[file], 0
            entry.mtime = min(int(content.mtime), epoch)
            entry.uname = entry.gname = ""
            entry.pax_headers = {}
            new.addfile(entry, old.extractfile(content) if entry.isreg() else None)
    return hashed.digest


def _plain(name: str) -> str:
    return name.strip("/").removeprefix(".").strip("/")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a root file system becomes an image."""

    drop: tuple[str, ...]
    compress: tuple[str, ...]
    epoch: int
    config: Mapping[str, object]
    created_by: str


def write_layout(layout: Path, rootfs: Path, recipe: Recipe) -> str:
    """Write a layout whose image has one zstd layer, made of a tar file; returns the image's digest."""
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)
    layer, diff_id = _write_layer(blobs, rootfs, recipe)
    created = datetime.fromtimestamp(recipe.epoch, tz=UTC).isoformat().replace("+00:00", "Z")
    image = {
        "architecture": "amd64",
        "config": dict(recipe.config),
        "created": created,
        "history": [{"created": created, "created_by": recipe.created_by}],
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": _write_json(blobs, image, media=f"{_MEDIA}.config.v1+json"),
        "layers": [layer],
    }
    described = _write_json(blobs, manifest, media=f"{_MEDIA}.manifest.v1+json")
    index = {"schemaVersion": 2, "mediaType": f"{_MEDIA}.index.v1+json", "manifests": [described]}
    (layout / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    (layout / "index.json").write_bytes(_json(index))
    return str(described["digest"])


def manifest_digest(layout: Path) -> str:
    """The digest of the one image in a layout."""
    return str(json.loads((layout / "index.json").read_bytes())["manifests"][0]["digest"])


def _write_layer(blobs: Path, rootfs: Path, recipe: Recipe) -> tuple[dict[str, Any], str]:
    temporary = blobs / "layer"
    with temporary.open("wb") as written:
        process = subprocess.Popen(recipe.compress, stdin=subprocess.PIPE, stdout=written)
        if process.stdin is None:
            raise AssertionError
        with process.stdin as pipe:
            diff_id = normalize(rootfs, pipe, drop=recipe.drop, epoch=recipe.epoch)
    if process.wait():
        raise KnowngoodError(f"`{' '.join(recipe.compress)}` failed with status {process.returncode}")
    with temporary.open("rb") as read:
        digest = hashlib.file_digest(read, "sha256").hexdigest()
    size = temporary.stat().st_size
    temporary.rename(blobs / digest)
    return {"mediaType": f"{_MEDIA}.layer.v1.tar+zstd", "digest": f"sha256:{digest}", "size": size}, diff_id


def _write_json(blobs: Path, document: object, *, media: str) -> dict[str, Any]:
    data = _json(document)
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
