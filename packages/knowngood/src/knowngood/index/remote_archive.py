"""Wheels and sdists of an index as `Artefact`s, with a cache of everything that was read from them.

A wheel is read member by member over HTTP ranges: the facts of a 900 MB file cost kilobytes. An sdist is small, so it
is fetched whole once and checked against the index's hash.

The hash of a whole file as the index serves it; it is read only to describe damage that was noticed elsewhere.

Many members of one archive at once: neighbours in a wheel are read with one request, and nothing is kept.

`RemoteWheel` reads single members and keeps them in the cache; here thousands of sources are read once. What did not
change since another release need not be read at all: `content_keys` tells by the checksums of the archive's directory.
"""

from __future__ import annotations

import hashlib
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
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import requests
from remotezip import RangeNotSupported, RemoteIOError, RemoteZip, RemoteZipError
from urllib3.exceptions import HTTPError as Urllib3Error

from knowngood.core.errors import CorruptArchiveError, NetworkError
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.index.artefact import TEXT_LIMIT, BrokenArchiveError, PublishedFile, UnreadableError
from knowngood.index.package_index import call_with_retries, open_http_session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

_PIECE = 1 << 20  # bytes
_TAIL = 1 << 20  # bytes read first: the central directory of a torch wheel is about 1.5 MB
_TIMEOUT = (20, 120)  # seconds: to connect, between two bytes


def read_remote_hash(url: str, session: requests.Session | None = None) -> str:
    """Return the SHA-256, in hexadecimal, of the file at `url` as it arrives here; the file is not kept.

    Without `session` the settings of this host are used, with the login of the index that serves the file.

    Raises:
        NetworkError: the server does not answer, or stops before the length that it stated.
    """
    try:
        return call_with_retries(lambda: _transfer(session or open_http_session(), url))
    except (requests.RequestException, Urllib3Error, OSError) as error:
        name = url.partition("#")[0].rpartition("/")[2]
        raise NetworkError(f"the index does not serve {name}: {type(error).__name__}") from None


def _transfer(session: requests.Session, url: str) -> str:
    digest = hashlib.sha256()
    headers = {"Accept-Encoding": "identity"}  # the bytes of the file itself
    with session.get(url, stream=True, timeout=_TIMEOUT, headers=headers) as response:
        response.raise_for_status()
        for piece in response.iter_content(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


T = TypeVar("T")

_INTERRUPTED = (Urllib3Error, ConnectionError, TimeoutError)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError)
_FINAL_STATUS = {401, 403, 404, 410, 416}
_TEXT_ENDINGS = (".py", ".toml", ".cfg", ".txt", ".md", ".json", "PKG-INFO", "METADATA", "/flash_api.cpp")
_TEXT_LIMIT = 2 << 20  # bytes of a text kept in memory; a larger one is read in a pass of its own
_SDIST_LIMIT = 400 << 20  # bytes
_UNPACKED_LIMIT = 4 << 30  # bytes of all members of an sdist


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
        total = 0
        with self._opened() as archive:
            for info in archive:
                total += info.size
                if total > _UNPACKED_LIMIT:
                    raise UnreadableError(f"{self.file.name} unpacks to more than {_UNPACKED_LIMIT >> 30} GiB")
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


_GAP = 128 << 10  # bytes between two members that are read and thrown away rather than asked for apart
_SPAN = 16 << 20  # bytes of one request at most
_HEADER = 30  # bytes of a local header without its name and extra field


class BulkArchive(Protocol):
    """An archive whose members are read in bulk."""

    def content_keys(self) -> Mapping[str, str]:
        """Return member -> text that is the same for the same content; `UnreadableError` when it cannot be read."""
        ...

    def read_members(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Yield these members with their contents, in any order; `UnreadableError` when one cannot be read."""
        ...


class BulkWheel:
    """A wheel on the index, read by ranges."""

    def __init__(self, file: PublishedFile, session: requests.Session) -> None:
        self.file = file
        self._session = session
        self._infos: dict[str, zipfile.ZipInfo] = {}

    def content_keys(self) -> Mapping[str, str]:
        """Return member -> its checksum and size, from the wheel's directory."""
        if not self._infos:
            self._infos = call_with_retries(self._read_directory)
        return {name: f"{info.CRC:08x}:{info.file_size}" for name, info in self._infos.items()}

    def _read_directory(self) -> dict[str, zipfile.ZipInfo]:
        try:
            with RemoteZip(
                self.file.url, initial_buffer_size=_TAIL, session=self._session, timeout=_TIMEOUT
            ) as archive:
                return {info.filename: info for info in archive.infolist() if not info.is_dir()}
        except (requests.RequestException, RemoteZipError, OSError, ValueError) as error:
            raise UnreadableError(f"{self.file.name}: {type(error).__name__}", again=True) from None

    def read_members(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Yield these members with their contents, in the order in which the wheel holds them."""
        self.content_keys()
        infos = sorted((self._infos[name] for name in names), key=lambda info: info.header_offset)
        for span in _group_neighbours(infos):
            first = span[0].header_offset
            content = call_with_retries(lambda span=span, first=first: self._fetch(first, _end_of(span[-1])))  # type: ignore[misc]
            for info in span:
                yield info.filename, _unpack_member(self.file.name, info, content, info.header_offset - first)

    def _fetch(self, first: int, end: int) -> bytes:
        try:
            response = self._session.get(self.file.url, headers={"Range": f"bytes={first}-{end - 1}"}, timeout=_TIMEOUT)
            response.raise_for_status()
        except requests.HTTPError as error:
            status = error.response.status_code
            raise UnreadableError(f"the registry answered {status} for {self.file.name}", again=status >= 500) from None
        except requests.RequestException as error:
            raise UnreadableError(f"reading {self.file.name} stopped: {type(error).__name__}", again=True) from None
        return response.content[first:end] if response.status_code == requests.codes.ok else response.content


class BulkSdist:
    """An sdist on the index; it is fetched whole."""

    def __init__(self, file: PublishedFile, session: requests.Session, cache: Path | None = None) -> None:
        self._sdist = RemoteSdist(file, session, cache)

    def content_keys(self) -> Mapping[str, str]:
        """Return member -> the hash of its content, for Python sources only."""
        names = [name for name in self._sdist.members if name.endswith((".py", ".pyi"))]
        return {name: sha256(self._sdist.read(name)).hexdigest()[:24] for name in names}

    def read_members(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Yield these members with their contents."""
        for name in names:
            yield name, self._sdist.read(name)
        self._sdist.close()


def open_bulk_archive(file: PublishedFile, session: requests.Session) -> BulkArchive:
    """Open a published file to read many of its members once."""
    return BulkWheel(file, session) if file.is_wheel else BulkSdist(file, session)


def _end_of(info: zipfile.ZipInfo) -> int:
    """Return a byte behind a member; its local header may have a longer extra field than the directory says."""
    return info.header_offset + _HEADER + len(info.filename.encode()) + len(info.extra) + 64 + info.compress_size


def _group_neighbours(infos: list[zipfile.ZipInfo]) -> Iterator[list[zipfile.ZipInfo]]:
    span: list[zipfile.ZipInfo] = []
    for info in infos:
        if span and (info.header_offset - _end_of(span[-1]) > _GAP or _end_of(info) - span[0].header_offset > _SPAN):
            yield span
            span = []
        span.append(info)
    if span:
        yield span


def _unpack_member(archive: str, info: zipfile.ZipInfo, content: bytes, offset: int) -> bytes:
    header = content[offset : offset + _HEADER]
    if header[:4] != b"PK\x03\x04" or info.file_size > TEXT_LIMIT:
        raise UnreadableError(f"{archive} is not a readable wheel: {info.filename}")
    start = offset + _HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    packed = content[start : start + info.compress_size]
    try:
        plain = zlib.decompressobj(-15).decompress(packed, TEXT_LIMIT) if info.compress_type else packed
    except zlib.error as error:
        raise UnreadableError(f"{archive}: {info.filename}: {error}") from None
    if zlib.crc32(plain) != info.CRC:
        raise UnreadableError(f"{archive}: {info.filename} has another checksum than the wheel's directory")
    return plain
