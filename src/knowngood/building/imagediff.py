"""Two layers, member by member: which files differ, and in what."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
}


@dataclass(frozen=True, kw_only=True)
class Member:
    """What a layer says of one path."""

    kind: str
    mode: str
    owner: str
    time: int
    link: str
    content: str
    """SHA-256, of files only."""


def members(layer: Path) -> dict[str, Member]:
    """Every path of a layer blob, compressed with zstd or not at all."""
    with layer.open("rb") as raw:
        magic = raw.read(4)
        raw.seek(0)
        if magic != b"\x28\xb5\x2f\xfd":
            return _members(raw)
        from zstandard import ZstdDecompressor

        with ZstdDecompressor().stream_reader(raw) as stream:
            return _members(stream)


def _members(stream: Any) -> dict[str, Member]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        return {
            "/" + member.name.strip("/"): Member(
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


def differences(before: Mapping[str, Member], after: Mapping[str, Member]) -> list[str]:
    """A line for each path that differs: `path: content, time`. Pure."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            lines.append(f"{path}: gone")
        elif path not in before:
            lines.append(f"{path}: new")
        elif wrong := _attributes(before[path], after[path]):
            lines.append(f"{path}: {', '.join(wrong)}")
    return lines or ["the same files, but in another order or compressed in another way"]


def _attributes(before: Member, after: Member) -> list[str]:
    old, new = asdict(before), asdict(after)
    return [
        name if name == "content" else f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]
    ]


def config_differences(before: bytes, after: bytes) -> list[str]:
    """The keys of two image configurations that differ, with their values where they are short. Pure."""
    old, new = _flat(json.loads(before)), _flat(json.loads(after))
    return [
        f"{key}: {_short(old.get(key))} -> {_short(new.get(key))}"
        for key in [*old, *(key for key in new if key not in old)]
        if old.get(key) != new.get(key)
    ]


def _flat(value: Any, at: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: item for name in value for key, item in _flat(value[name], f"{at}.{name}".lstrip(".")).items()}
    if isinstance(value, list):
        return {key: item for index, one in enumerate(value) for key, item in _flat(one, f"{at}[{index}]").items()}
    return {at: value}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
