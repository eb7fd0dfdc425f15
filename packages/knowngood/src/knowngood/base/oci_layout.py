"""OCI image layouts of one layer, written so that the same files give the same bytes."""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import hashlib
import json
import subprocess
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import failure_from_output
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_MEDIA = "application/vnd.oci.image"
_BLOCK = 1 << 20


class _HashingWriter:
    """A file that passes what is written to it on to another file, and hashes it."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._target.write(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def is_dropped(name: str, patterns: Iterable[str]) -> bool:
    """Whether the patterns drop a path (without leading slash); a later `!pattern` keeps what it matches. Pure."""
    result = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!")):
            result = not pattern.startswith("!")
    return result


def normalize_tar(source: Path, target: IO[bytes], *, drop: Sequence[str], epoch: int) -> str:
    """Copy a tar file: sorted, without what `drop` matches, no time after `epoch` (seconds); return its sha256 digest.

    Owners are kept by number. Extended attributes and access times are not kept.
    """
    writer = _HashingWriter(target)
    with (
        tarfile.open(source, "r:") as old,
        tarfile.open(fileobj=writer, mode="w|", format=tarfile.GNU_FORMAT, bufsize=_BLOCK) as new,  # type: ignore[call-overload]
    ):
        members = {name: member for member in old if (name := _plain_path(member.name))}
        first: dict[str, str] = {}  # for each file with hard links: the name that comes first in the output
        for name, member in sorted(members.items(), key=lambda item: item[0].split("/")):
            if is_dropped(name, drop):
                continue
            file = _plain_path(member.linkname) if member.islnk() else name
            content = members[file]
            entry = copy.copy(content)
            entry.name = name
            if first.setdefault(file, name) != name:
                entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, first[file], 0
            entry.mtime = min(int(content.mtime), epoch)
            entry.uname = entry.gname = ""
            entry.pax_headers = {}
            new.addfile(entry, old.extractfile(content) if entry.isreg() else None)
    return writer.digest


def _plain_path(name: str) -> str:
    return name.strip("/").removeprefix(".").strip("/")


@dataclass(frozen=True, kw_only=True)
class LayoutRecipe:
    """How a root file system becomes an image."""

    drop: tuple[str, ...]
    compress: tuple[str, ...]
    epoch: int
    config: Mapping[str, object]
    created_by: str
    host: HostArchitecture = DEFAULT_HOST


def write_layout(layout: Path, rootfs: Path, recipe: LayoutRecipe) -> str:
    """Write a layout whose image has one layer, made of the tar file `rootfs`; return the image's digest."""
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)
    layer, diff_id = _write_layer(blobs, rootfs, recipe)
    created = datetime.fromtimestamp(recipe.epoch, tz=UTC).isoformat().replace("+00:00", "Z")
    image = {
        "architecture": recipe.host.debian,
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
    descriptor = _write_json(blobs, manifest, media=f"{_MEDIA}.manifest.v1+json")
    index = {"schemaVersion": 2, "mediaType": f"{_MEDIA}.index.v1+json", "manifests": [descriptor]}
    (layout / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    (layout / "index.json").write_bytes(_json(index))
    return str(descriptor["digest"])


def manifest_digest(layout: Path) -> str:
    """Return the digest of the one image in a layout; `FileNotFoundError` if there is no layout."""
    return str(json.loads((layout / "index.json").read_bytes())["manifests"][0]["digest"])


def _write_layer(blobs: Path, rootfs: Path, recipe: LayoutRecipe) -> tuple[dict[str, Any], str]:
    temporary = blobs / "layer"
    with temporary.open("wb") as output:
        process = subprocess.Popen(
            recipe.compress,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.PIPE,
            preexec_fn=end_with_parent(),
        )
        if process.stdin is None or process.stderr is None:
            raise AssertionError
        diff_id = ""
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # where it ends early, it says why
            diff_id = normalize_tar(rootfs, pipe, drop=recipe.drop, epoch=recipe.epoch)
        with process.stderr as pipe:
            errors = pipe.read().decode(errors="replace").strip()
    if process.wait() or not diff_id:
        message = f"`{' '.join(recipe.compress)}` failed with status {process.returncode}: {errors}"
        raise failure_from_output(message, errors)
    with temporary.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
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
