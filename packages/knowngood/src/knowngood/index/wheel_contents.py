"""What a wheel would install: its RECORD, read without downloading the wheel, and cached under its hash.

Two distributions that write different bytes to the same file overwrite each other in an arbitrary order.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from zipfile import BadZipFile, ZipFile

import requests
from remotezip import RangeNotSupported, RemoteIOError, RemoteZip, RemoteZipError
from urllib3.exceptions import HTTPError as Urllib3Error

from knowngood.core import retries
from knowngood.core.errors import CorruptArchiveError, KnowngoodError, MissingError, NetworkError
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.index.artefact import TEXT_LIMIT
from knowngood.index.package_index import open_http_session
from knowngood.index.remote_archive import read_remote_hash

if TYPE_CHECKING:
    from knowngood.core.notify import Notify

_BROKEN = (BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError, csv.Error, RemoteZipError)
_INTERRUPTED = (RemoteIOError, Urllib3Error, requests.RequestException)
_DATA = re.compile(r"[^/]+\.data/(?P<scheme>[a-z]+)/(?P<rest>.+)")


@dataclass(frozen=True, kw_only=True)
class WheelContents:
    """A wheel's size in bytes and the files it installs: path below site-packages to RECORD hash."""

    size: int
    files: Mapping[str, str]


def installed_path(path: str) -> str:
    """Return where RECORD's `path` is installed, relative to site-packages.

    Scripts go to `bin/`, files of the installation prefix to `data/`.
    """
    match = _DATA.fullmatch(path)
    if match is None:
        return path
    prefix = {"purelib": "", "platlib": "", "scripts": "bin/"}.get(match["scheme"], match["scheme"] + "/")
    return prefix + match["rest"]


def parse_record(text: str) -> dict[str, str]:
    """Return the files in a RECORD with their hashes, without those of the wheel's own `.dist-info`."""
    return {
        installed_path(row[0]): row[1]
        for row in csv.reader(text.splitlines())
        if len(row) >= 2 and ".dist-info/" not in row[0]
    }


def describe_clobbered_files(contents: Mapping[str, WheelContents]) -> list[str]:
    """Return a sentence for each pair of distributions that write different bytes to the same file. Pure."""
    owner: dict[str, str] = {}
    pairs: dict[tuple[str, str], list[str]] = {}
    for name in sorted(contents):
        for path, digest in contents[name].files.items():
            first = owner.setdefault(path, name)
            if first != name and contents[first].files[path] != digest:
                pairs.setdefault((first, name), []).append(path)
    return [
        f"{first} and {second} both write {paths[0]}" + (f" and {len(paths) - 1} more files" if paths[1:] else "")
        for (first, second), paths in pairs.items()
    ]


def read_contents_of_wheels(wheels: Mapping[str, tuple[str, str]], notify: Notify) -> dict[str, WheelContents]:
    """Read the contents of several wheels at once; `wheels` is name -> (URL, sha256)."""
    missing = sum(not _cache_file(sha256).exists() for _, sha256 in wheels.values())
    if missing:
        notify(f"reading the file lists of {missing} wheels")
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(wheels, pool.map(lambda wheel: read_wheel_contents(*wheel), wheels.values()), strict=True))


def read_wheel_contents(url: str, sha256: str) -> WheelContents:
    """Read the contents of the wheel at `url` (`https:` by ranged requests, or `file:`).

    For a source archive only the size is returned: its files are not known before it is built, and the verification
    of the image compares them anyway.

    Raises:
        CorruptArchiveError: the file is damaged: it cannot be opened, and its hash is not `sha256`.
        KnowngoodError: the file is no wheel, although its hash is right.
        MissingError: the index does not serve it.
    """
    cache = _cache_file(sha256)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged: read the wheel
        stored = json.loads(cache.read_text(encoding="utf-8"))
        return WheelContents(size=stored["size"], files=stored["files"])
    try:
        contents = _read_any(url)
    except _BROKEN:  # once more: it may have been damaged on the way
        try:
            contents = _read_any(url)
        except _BROKEN as error:
            raise _describe_broken_wheel(url, sha256, error) from None
    write_atomically(cache, json.dumps({"size": contents.size, "files": contents.files}))
    return contents


def _read_any(url: str) -> WheelContents:
    if (path := _local_path(url)) is None:
        return _read_remote(url)
    with ZipFile(path) as wheel:
        return WheelContents(size=path.stat().st_size, files=parse_record(_read_record(wheel)))


def _local_path(url: str) -> Path | None:
    """Return the path that a `file:` address names, `None` for an address on the network."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _describe_broken_wheel(url: str, sha256: str, error: Exception) -> KnowngoodError:
    """Return the error for a wheel that cannot be opened; it is read as a whole, for its hash."""
    name, path = unquote(urlsplit(url).path).rpartition("/")[2], _local_path(url)
    reason = str(error) or type(error).__name__
    try:
        actual = read_remote_hash(url) if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
    except NetworkError as failure:
        return MissingError(f"{name} cannot be opened ({reason}), and {failure}")
    if actual == sha256:
        return KnowngoodError(f"{name} is not a wheel, although its sha256 is the expected one: {reason}")
    return CorruptArchiveError(name, expected=sha256, actual=actual, detail=reason)


def _read_remote(url: str) -> WheelContents:
    try:
        for attempt in retries.retry_attempts(on=_INTERRUPTED, attempts=4):
            with attempt, open_http_session() as session:
                head = session.head(url, timeout=60, allow_redirects=True, headers={"Accept-Encoding": "identity"})
                head.raise_for_status()
                size = _stated_size(head)
                if url.endswith(".tar.gz"):
                    return WheelContents(size=size, files={})
                with RemoteZip(url, session=session, timeout=60) as wheel:
                    return WheelContents(size=size, files=parse_record(_read_record(wheel)))
    except (*_INTERRUPTED, RangeNotSupported, KeyError) as error:
        raise MissingError(
            f"the index does not serve {url.rpartition('/')[2]}: {error}; check the network and run the command again"
        ) from None
    raise AssertionError("stamina yields at least one attempt")


def _stated_size(head: requests.Response) -> int:
    length = head.headers["Content-Length"]
    if not re.fullmatch(r"\d{1,15}", length):
        raise KeyError(f"no size: {length[:100]!r}")
    return int(length)


def _read_record(wheel: ZipFile) -> str:
    records = [item for item in wheel.infolist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", item.filename)]
    if not records or records[0].file_size > TEXT_LIMIT:
        raise BadZipFile("its RECORD is too large" if records else "it has no RECORD")
    return wheel.read(records[0]).decode()


def _cache_file(sha256: str) -> Path:
    return cache_folder() / "contents" / f"{sha256}.json"
