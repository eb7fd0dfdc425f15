"""A published file as the readers see it: named members that can be read, whatever kind of archive it is.

Whatever was read once lies in the cache (keyed by the file's sha256), so a second reading costs no network.
"""

from __future__ import annotations

import json
import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from knowngood.harvest.index import File, Unreadable
from knowngood.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TEXT_LIMIT = 64 << 20  # bytes: no source or metadata file is larger; a larger one is an attack or an error


class Artefact(Protocol):
    """A wheel or sdist, opened no further than needed."""

    @property
    def file(self) -> File:
        """What the index says about it."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        ...

    @property
    def members(self) -> Mapping[str, int]:
        """Path inside the archive -> uncompressed bytes; an sdist's top folder is left out."""
        ...

    def read(self, member: str) -> bytes:
        """A member's content, kept in the cache."""
        ...

    def stream(self, member: str) -> Iterator[bytes]:
        """A member's content in pieces, not kept; stop early and no more is transferred."""
        ...

    def derived(self, name: str, compute: Callable[[], Any]) -> Any:
        """A JSON value computed from streams, kept in the cache under `name`."""
        ...

    def close(self) -> None:
        """Let go of the connection or the file."""
        ...


class Store:
    """The cache's folder of one published file."""

    def __init__(self, file: File, cache: Path | None = None) -> None:
        key = file.sha256[:16] or sha256(file.name.encode()).hexdigest()[:16]
        self.folder = (cache or cache_dir()) / "artefacts" / f"{file.name}-{key}"

    def path(self, kind: str, name: str) -> Path:
        """Where a thing of this name is kept."""
        return self.folder / kind / sha256(name.encode()).hexdigest()[:32]

    def bytes(self, kind: str, name: str, fetch: Callable[[], bytes]) -> bytes:
        """The kept content, else the fetched, which is kept."""
        path = self.path(kind, name)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            content = fetch()
        write_whole(path, content)
        return content

    def json(self, kind: str, name: str, compute: Callable[[], Any]) -> Any:
        """The same for a JSON value; a kept one that does not parse is computed anew."""
        path = self.path(kind, name)
        try:
            return json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            value = compute()
        write_whole(path, json.dumps(value).encode())
        return value


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or all of the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def text(artefact: Artefact, member: str) -> str:
    """A text member; `Unreadable` when the archive lacks it or it is not UTF-8."""
    size = artefact.members.get(member)
    if size is None:
        raise Unreadable(f"{artefact.file.name} has no {member}")
    if size > TEXT_LIMIT:
        raise Unreadable(f"{member} in {artefact.file.name} has {size} bytes, too many for a text")
    try:
        return artefact.read(member).decode()
    except UnicodeDecodeError:
        raise Unreadable(f"{member} in {artefact.file.name} is not UTF-8") from None


def one_member(artefact: Artefact, ending: str) -> str:
    """The shortest member path with this ending; `Unreadable` when there is none."""
    found = sorted((name for name in artefact.members if name.endswith(ending)), key=lambda name: (len(name), name))
    if not found:
        raise Unreadable(f"{artefact.file.name} has no {ending}")
    return found[0]
