"""Wheels and sdists of an index as `Artefact`s, with a cache of everything that was read from them.

A wheel is read member by member over HTTP ranges: the facts of a 900 MB file cost kilobytes. An sdist is small, so it
is fetched whole once and checked against the index's hash.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import requests
from remotezip import RangeNotSupported, RemoteIOError, RemoteZip, RemoteZipError
from urllib3.exceptions import HTTPError as Urllib3Error

from knowngood.core.errors import CorruptArchiveError, NetworkError
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.index.artefact import BrokenArchiveError, PublishedFile, UnreadableError
from knowngood.index.package_index import call_with_retries
from knowngood.index.remote_hash import read_remote_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

_PIECE = 1 << 20  # bytes
_TAIL = 1 << 20  # bytes read first: the central directory of a torch wheel is about 1.5 MB
_TIMEOUT = (20, 120)  # seconds: to connect, between two bytes
_INTERRUPTED = (Urllib3Error, ConnectionError, TimeoutError)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError)
_FINAL_STATUS = {401, 403, 404, 410, 416}
_TEXT_ENDINGS = (".py", ".toml", ".cfg", ".txt", ".md", ".json", "PKG-INFO", "METADATA", "/flash_api.cpp")
_TEXT_LIMIT = 2 << 20  # bytes of a text kept in memory; a larger one is read in a pass of its own
_SDIST_LIMIT = 400 << 20  # bytes


class ArtefactCache:
    """The cache folder of one published file; `kind` is a subfolder, `name` any text."""

    def __init__(self, file: PublishedFile, cache: Path | None = None) -> None:
        key = file.sha256[:16] or sha256(file.name.encode()).hexdigest()[:16]
        self.folder = (cache or cache_folder()) / "artefacts" / f"{file.name}-{key}"

    def path(self, kind: str, name: str) -> Path:
        """Return where the content of this name is kept."""
        return self.folder / kind / sha256(name.encode()).hexdigest()[:32]

    def bytes(self, kind: str, name: str, fetch: Callable[[], bytes]) -> bytes:
        """Return the cached content, or fetch it and keep it."""
        path = self.path(kind, name)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            content = fetch()
        write_atomically(path, content)
        return content

    def json(self, kind: str, name: str, compute: Callable[[], Any]) -> Any:
        """Return the cached JSON value, or compute it and keep it; one that does not parse is computed again."""
        path = self.path(kind, name)
        try:
            return json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            value = compute()
        write_atomically(path, json.dumps(value))
        return value


class _RemoteArchive:
    """What both kinds of archive share."""

    def __init__(self, file: PublishedFile, session: requests.Session, cache: Path | None = None) -> None:
        self.file = file
        self._session = session
        self._cache = ArtefactCache(file, cache)

    def derived(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return a JSON value that is computed once and then kept in the cache."""
        return self._cache.json("derived", name, compute)

    def _fetch(self, read: Callable[[], T]) -> T:
        """Return `read()`; once more when the archive arrived broken, because it may have been damaged on the way."""
        try:
            return call_with_retries(read)
        except BrokenArchiveError:
            return call_with_retries(read)


class RemoteWheel(_RemoteArchive):
    """The `Artefact` of a wheel. The network is used only for what is needed and not in the cache."""

    _broken_reads = 0

    @cached_property
    def size(self) -> int:
        """Size of the whole wheel in bytes, as the index's server states it."""
        return int(self._cache.json("about", "size", lambda: self._fetch(self._fetch_size)))

    @cached_property
    def members(self) -> Mapping[str, int]:
        """Path in the wheel -> uncompressed size in bytes."""
        return dict(self._cache.json("about", "members", lambda: self._fetch(self._list_members)))

    def read(self, member: str) -> bytes:
        """Return a member's content, from the cache if it is there."""
        return self._cache.bytes("member", member, lambda: self._fetch(lambda: self._fetch_member(member)))

    def stream(self, member: str) -> Iterator[bytes]:
        """Yield a member's content in pieces of a megabyte."""
        with self._as_unreadable(), self._zip.open(member) as opened:
            while piece := opened.read(_PIECE):
                yield piece

    def close(self) -> None:
        """Close the connection if there is one."""
        opened = self.__dict__.pop("_zip", None)
        if opened is not None:
            opened.close()

    @cached_property
    def _zip(self) -> RemoteZip:
        return RemoteZip(self.file.url, initial_buffer_size=_TAIL, session=self._session, timeout=_TIMEOUT)

    def _fetch_size(self) -> int:
        with self._as_unreadable():
            response = self._session.head(self.file.url, timeout=_TIMEOUT, allow_redirects=True)
            response.raise_for_status()
            return int(response.headers["Content-Length"])

    def _list_members(self) -> dict[str, int]:
        with self._as_unreadable():
            return {info.filename: info.file_size for info in self._zip.infolist() if not info.is_dir()}

    def _fetch_member(self, member: str) -> bytes:
        with self._as_unreadable():
            return bytes(self._zip.read(member))

    @contextmanager
    def _as_unreadable(self) -> Iterator[None]:
        """Turn an error of the network or of a broken archive into a reason; the next read opens the wheel again."""
        try:
            yield
        except (requests.RequestException, RemoteZipError, *_INTERRUPTED, *_BROKEN) as error:
            self.close()
            raise self._describe_failure(error) from None
        except KeyError as error:
            raise UnreadableError(f"{self.file.name}: {error.args[0]}") from None

    def _describe_failure(self, error: Exception) -> UnreadableError:
        """Return the reason; a broken archive is read as a whole, for its hash, the second time that it is broken."""
        reason = _reason_of(self.file.name, error)
        if isinstance(reason, BrokenArchiveError):
            self._broken_reads += 1
        if self._broken_reads < 2 or not self.file.sha256:
            return reason
        with suppress(NetworkError):
            actual = read_remote_hash(self.file.url, self._session)
            if actual != self.file.sha256:
                return _corrupt_archive(self.file, actual, str(error) or type(error).__name__)
        return reason


def _corrupt_archive(file: PublishedFile, actual: str, detail: str = "") -> BrokenArchiveError:
    sentence = str(CorruptArchiveError(file.name, expected=file.sha256, actual=actual, detail=detail))
    return BrokenArchiveError(sentence, corrupt=True)


def _reason_of(name: str, error: Exception) -> UnreadableError:
    """Return the reason without addresses: the facts must be the same whichever index they were read from."""
    cause = error.__context__ if isinstance(error, RemoteIOError) else error
    if isinstance(cause, requests.HTTPError):
        status = cause.response.status_code
        return UnreadableError(f"the registry answered {status} for {name}", again=status not in _FINAL_STATUS)
    if isinstance(cause, requests.RequestException | Urllib3Error | ConnectionError | TimeoutError):
        return UnreadableError(f"reading {name} stopped: {type(cause).__name__}", again=True)
    if isinstance(error, RangeNotSupported | RemoteIOError):
        return UnreadableError(f"{name} is not a readable wheel: no ranges are served", again=True)
    return BrokenArchiveError(f"{name} is not a readable wheel: {str(error) or type(error).__name__}")


class RemoteSdist(_RemoteArchive):
    """The `Artefact` of a `.tar.gz` sdist."""

    @cached_property
    def size(self) -> int:
        """Size of the whole sdist in bytes."""
        return self.path.stat().st_size

    @property
    def members(self) -> Mapping[str, int]:
        """Path below the sdist's top folder -> size in bytes."""
        return self._content[0]

    def read(self, member: str) -> bytes:
        """Return a member's content."""
        texts = self._content[1]
        return texts[member] if member in texts else b"".join(self.stream(member))

    def stream(self, member: str) -> Iterator[bytes]:
        """Yield a member's content in pieces, in a pass of its own over the archive."""
        with self._opened() as archive:
            for info in archive:
                if _below_top(info.name) == member and (opened := archive.extractfile(info)):
                    while piece := opened.read(_PIECE):
                        yield piece
                    return
        raise UnreadableError(f"{self.file.name} has no {member}")

    def close(self) -> None:
        """Drop the texts that are held in memory."""
        self.__dict__.pop("_content", None)

    @cached_property
    def _content(self) -> tuple[dict[str, int], dict[str, bytes]]:
        """Sizes of all members and the small texts, in one pass: seeking back in a `.tar.gz` would start over."""
        sizes: dict[str, int] = {}
        texts: dict[str, bytes] = {}
        with self._opened() as archive:
            for info in archive:
                if info.isfile():
                    name = _below_top(info.name)
                    sizes[name] = info.size
                    if (
                        info.size <= _TEXT_LIMIT
                        and name.endswith(_TEXT_ENDINGS)
                        and (opened := archive.extractfile(info))
                    ):
                        texts[name] = opened.read()
        return sizes, texts

    @contextmanager
    def _opened(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self.path, "r|gz") as archive:
                yield archive
        except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
            raise UnreadableError(f"{self.file.name} is not a readable sdist: {error}") from None

    @cached_property
    def path(self) -> Path:
        """The whole sdist on this machine; its hash was checked when it arrived."""
        path = self._cache.path("whole", "sdist")
        if not path.exists():
            self._fetch(lambda: self._download(path))
        return path

    def _download(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                digest = self._transfer(out.write)
            if self.file.sha256 and digest != self.file.sha256:
                raise _corrupt_archive(self.file, digest)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _transfer(self, write: Callable[[bytes], int]) -> str:
        digest, total = sha256(), 0
        try:
            with self._session.get(self.file.url, stream=True, timeout=_TIMEOUT) as response:
                response.raise_for_status()
                for piece in response.iter_content(_PIECE):
                    total += len(piece)
                    if total > _SDIST_LIMIT:
                        raise UnreadableError(f"{self.file.name} is larger than {_SDIST_LIMIT >> 20} MB")
                    digest.update(piece)
                    write(piece)
        except requests.HTTPError as error:
            status = error.response.status_code
            reason = f"the registry answered {status} for {self.file.name}"
            raise UnreadableError(reason, again=status >= 500) from None
        except requests.RequestException as error:
            reason = f"reading {self.file.name} stopped: {type(error).__name__}"
            raise UnreadableError(reason, again=True) from None
        return digest.hexdigest()


def _below_top(name: str) -> str:
    return name.partition("/")[2]
