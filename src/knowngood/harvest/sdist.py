"""A source distribution: fetched whole once (they are small), checked against the index's hash."""

from __future__ import annotations

import os
import tarfile
import tempfile
import zlib
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

from knowngood.harvest.artefact import Store
from knowngood.harvest.index import File, Unreadable, retried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PIECE = 1 << 20
_TEXTS = (".py", ".toml", ".cfg", ".txt", ".md", ".json", "PKG-INFO", "METADATA", "/flash_api.cpp")
_TEXT = 2 << 20  # bytes: a larger text is read by a pass of its own
_LIMIT = 400 << 20  # bytes
_TIMEOUT = (20, 120)


class RemoteSdist:
    """The `Artefact` of a `.tar.gz` sdist."""

    def __init__(self, file: File, session: requests.Session, cache: Path | None = None) -> None:
        self.file = file
        self._session = session
        self._store = Store(file, cache)

    @cached_property
    def size(self) -> int:
        """Bytes of the whole sdist."""
        return self.path.stat().st_size

    @property
    def members(self) -> Mapping[str, int]:
        """Path below the sdist's top folder -> bytes."""
        return self._content[0]

    def read(self, member: str) -> bytes:
        """A member's content."""
        texts = self._content[1]
        return texts[member] if member in texts else b"".join(self.stream(member))

    def stream(self, member: str) -> Iterator[bytes]:
        """A member's content in pieces, in a pass of its own over the archive."""
        with self._opened() as archive:
            for info in archive:
                if _below_top(info.name) == member and (opened := archive.extractfile(info)):
                    while piece := opened.read(_PIECE):
                        yield piece
                    return
        raise Unreadable(f"{self.file.name} has no {member}")

    def derived(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value computed once."""
        return self._store.json("derived", name, compute)

    def close(self) -> None:
        """Forget the content."""
        self.__dict__.pop("_content", None)

    @cached_property
    def _content(self) -> tuple[dict[str, int], dict[str, bytes]]:
        """All sizes and the small texts, in one pass: seeking back in a `.tar.gz` would start it anew."""
        sizes: dict[str, int] = {}
        texts: dict[str, bytes] = {}
        with self._opened() as archive:
            for info in archive:
                if info.isfile():
                    name = _below_top(info.name)
                    sizes[name] = info.size
                    if info.size <= _TEXT and name.endswith(_TEXTS) and (opened := archive.extractfile(info)):
                        texts[name] = opened.read()
        return sizes, texts

    @contextmanager
    def _opened(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self.path, "r|gz") as archive:
                yield archive
        except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
            raise Unreadable(f"{self.file.name} is not a readable sdist: {error}") from None

    @cached_property
    def path(self) -> Path:
        """The whole sdist on this machine, checked against the hash when it arrived."""
        path = self._store.path("whole", "sdist")
        if not path.exists():
            retried(lambda: self._download(path))
        return path

    def _download(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                digest = self._transfer(out.write)
            if self.file.sha256 and digest != self.file.sha256:
                reason = f"{self.file.name} arrived with another sha256 than the index states"
                raise Unreadable(reason, again=True)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _transfer(self, write: Callable[[bytes], int]) -> str:
        digest, total = sha256(), 0
        try:
            with self._session.get(self.file.url, stream=True, timeout=_TIMEOUT) as answer:
                answer.raise_for_status()
                for piece in answer.iter_content(_PIECE):
                    total += len(piece)
                    if total > _LIMIT:
                        raise Unreadable(f"{self.file.name} is larger than {_LIMIT >> 20} MB")
                    digest.update(piece)
                    write(piece)
        except requests.HTTPError as error:
            status = error.response.status_code
            reason = f"the registry answered {status} for {self.file.name}"
            raise Unreadable(reason, again=status >= 500) from None
        except requests.RequestException as error:
            reason = f"reading {self.file.name} stopped: {type(error).__name__}"
            raise Unreadable(reason, again=True) from None
        return digest.hexdigest()


def _below_top(name: str) -> str:
    return name.partition("/")[2]
