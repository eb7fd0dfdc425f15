"""Many members of one archive at once: neighbours in a wheel are read with one request, and nothing is kept.

`RemoteWheel` reads single members and keeps them in the cache; here thousands of sources are read once. What did not
change since another release need not be read at all: `content_keys` tells by the checksums of the archive's directory.
"""

from __future__ import annotations

import zlib
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

import requests
from remotezip import RemoteZip, RemoteZipError

from knowngood.index.artefact import TEXT_LIMIT, PublishedFile, UnreadableError
from knowngood.index.package_index import call_with_retries
from knowngood.index.remote_archive import RemoteSdist

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

_TAIL = 1 << 20  # bytes read first: the central directory of a torch wheel is about 1.5 MB
_GAP = 128 << 10  # bytes between two members that are read and thrown away rather than asked for apart
_SPAN = 16 << 20  # bytes of one request at most
_HEADER = 30  # bytes of a local header without its name and extra field
_TIMEOUT = (20, 120)  # seconds: to connect, between two bytes


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
