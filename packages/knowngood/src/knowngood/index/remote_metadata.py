"""The metadata of one published file, with as few bytes as its kind allows; nothing is kept in the cache.

The metadata file that the index offers beside a wheel (PEP 658); else the end of the wheel by ranged reads; of an sdist
the stream up to its PKG-INFO, which stands near the beginning.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
import zlib
from contextlib import closing
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING

import requests
from remotezip import RemoteIOError, RemoteZip, RemoteZipError
from urllib3.exceptions import HTTPError as Urllib3Error

from knowngood.index.artefact import TEXT_LIMIT, PublishedFile, UnreadableError
from knowngood.index.package_index import call_with_retries

if TYPE_CHECKING:
    from collections.abc import Callable

    from urllib3 import HTTPResponse

_TAIL = 1 << 15  # bytes read first: the directory of a small wheel, and often its metadata
_STREAM_LIMIT = 16 << 20  # bytes of an sdist; PKG-INFO of one that is larger and has it later is not worth them
_TIMEOUT = (20, 60)  # seconds: to connect, between two bytes
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, ValueError, KeyError)
_MEMBER = {".whl": r"[^/]+\.dist-info/METADATA", ".zip": r"[^/]+/PKG-INFO", ".gz": r"(\./)?[^/]+/PKG-INFO"}


def fetch_metadata_text(file: PublishedFile, session: requests.Session) -> bytes:
    """Return METADATA of a wheel, or PKG-INFO of an sdist.

    Raises:
        UnreadableError: the file has none, is broken, or cannot be reached; the reason contains no address.
    """
    if file.metadata_sha256 is not None:
        return call_with_retries(lambda: _as_unreadable(file, lambda: _fetch_offered(file, session)))
    fetch = _read_tar if file.name.endswith(".tar.gz") else _read_zip
    return call_with_retries(lambda: _as_unreadable(file, lambda: fetch(file, session)))


def _fetch_offered(file: PublishedFile, session: requests.Session) -> bytes:
    response = session.get(f"{file.url}.metadata", timeout=_TIMEOUT)
    response.raise_for_status()
    if file.metadata_sha256 and sha256(response.content).hexdigest() != file.metadata_sha256:
        raise UnreadableError(f"the metadata of {file.name} arrived with another sha256 than stated", again=True)
    return response.content


def _read_zip(file: PublishedFile, session: requests.Session) -> bytes:
    with RemoteZip(file.url, initial_buffer_size=_TAIL, session=session, timeout=_TIMEOUT) as archive:
        pattern = _MEMBER[file.name[-4:]]
        names = [info for info in archive.infolist() if re.fullmatch(pattern, info.filename)]
        if not names:
            raise UnreadableError(f"{file.name} has no metadata")
        if names[0].file_size > TEXT_LIMIT:
            raise UnreadableError(f"the metadata of {file.name} is too large for a text")
        return bytes(archive.read(names[0]))


def _read_tar(file: PublishedFile, session: requests.Session) -> bytes:
    with closing(session.get(file.url, stream=True, timeout=_TIMEOUT)) as response:
        response.raise_for_status()
        stream = _BoundedStream(response.raw, file.name)
        with tarfile.open(fileobj=stream, mode="r|gz") as archive:  # type: ignore[call-overload] # it only reads
            for info in archive:
                if info.isfile() and re.fullmatch(_MEMBER[".gz"], info.name) and info.size <= TEXT_LIMIT:
                    opened = archive.extractfile(info)
                    return opened.read() if opened else b""
    raise UnreadableError(f"{file.name} has no PKG-INFO")


class _BoundedStream:
    """A response that is read up to a limit, so that one huge sdist cannot hold up a harvest."""

    def __init__(self, raw: HTTPResponse, name: str) -> None:
        self._raw = raw
        self._name = name
        self._left = _STREAM_LIMIT

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise UnreadableError(f"{self._name} has no PKG-INFO in its first {_STREAM_LIMIT >> 20} MB")
        return self._raw.read(size)


def _as_unreadable(file: PublishedFile, fetch: Callable[[], bytes]) -> bytes:
    """Return `fetch()`, with every error of the network or of a broken archive as a reason without addresses."""
    try:
        return fetch()
    except (requests.RequestException, RemoteZipError, Urllib3Error, ConnectionError, TimeoutError) as error:
        cause = error.__context__ if isinstance(error, RemoteIOError) else error
        if isinstance(cause, requests.HTTPError):
            status = cause.response.status_code
            again = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
            raise UnreadableError(f"the registry answered {status} for {file.name}", again=again) from None
        raise UnreadableError(f"reading {file.name} stopped: {type(cause).__name__}", again=True) from None
    except _BROKEN as error:
        raise UnreadableError(f"{file.name} is not a readable archive: {error or type(error).__name__}") from None
