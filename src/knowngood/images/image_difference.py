"""Compares two layers or two image configurations: which files or keys differ, and how."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from zstandard import ZstdDecompressor

_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
}


@dataclass(frozen=True, kw_only=True)
class LayerMember:
    """The entry of one path in a layer."""

    kind: str
    mode: str
    owner: str
    time: int
    link: str
    content: str
    """SHA-256 of a file's bytes; empty for anything else."""


def read_layer_members(layer: Path) -> dict[str, LayerMember]:
    """Return every path of a layer file, which is a tar archive, compressed with zstd or not at all."""
    with layer.open("rb") as raw:
        magic = raw.read(4)
        raw.seek(0)
        if magic != b"\x28\xb5\x2f\xfd":
            return _read_members(raw)
        with ZstdDecompressor().stream_reader(raw) as stream:
            return _read_members(stream)


def _read_members(stream: Any) -> dict[str, LayerMember]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        return {
            "/" + member.name.strip("/"): LayerMember(
                kind=_KINDS.get(member.type, "special file"),
                mode=f"{member.mode:04o}",
                owner=f"{member.uid}:{member.gid}",
                time=int(member.mtime),
                link=member.linkname,
                content=_digest(archive.extractfile(member)) if member.isreg() else "",
            )
            for member in archive
        }


def _digest(file: IO[bytes] | None) -> str:
    digest = hashlib.sha256()
    while file and (block := file.read(1 << 20)):
        digest.update(block)
    return digest.hexdigest()


def compare_members(before: Mapping[str, LayerMember], after: Mapping[str, LayerMember]) -> list[str]:
    """Return a line for each path that differs, such as `path: content, time`. Pure."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            lines.append(f"{path}: gone")
        elif path not in before:
            lines.append(f"{path}: new")
        elif attributes := _different_attributes(before[path], after[path]):
            lines.append(f"{path}: {', '.join(attributes)}")
    return lines or ["the same files, but in another order or compressed in another way"]


def _different_attributes(before: LayerMember, after: LayerMember) -> list[str]:
    old, new = asdict(before), asdict(after)
    return [
        name if name == "content" else f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]
    ]


def compare_configs(before: bytes, after: bytes) -> list[str]:
    """Return a line for each key that differs in two image configurations (JSON), with both values. Pure."""
    old, new = _flatten(json.loads(before)), _flatten(json.loads(after))
    return [
        f"{key}: {_shorten(old.get(key))} -> {_shorten(new.get(key))}"
        for key in [*old, *(key for key in new if key not in old)]
        if old.get(key) != new.get(key)
    ]


def _flatten(value: Any, at: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: item for name in value for key, item in _flatten(value[name], f"{at}.{name}".lstrip(".")).items()}
    if isinstance(value, list):
        return {
            key: item
            for index, element in enumerate(value)
            for key, item in _flatten(element, f"{at}[{index}]").items()
        }
    return {at: value}


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
