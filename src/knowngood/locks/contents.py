"""What a wheel would write: its RECORD, read without downloading the wheel, and kept under its hash.

Two distributions that write the same file with different bytes clobber each other in an order nobody chose.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from zipfile import BadZipFile, ZipFile

from knowngood import host, retrying
from knowngood.atomic import write_text
from knowngood.errors import KnowngoodError, MissingError
from knowngood.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable

    import requests

_DATA = re.compile(r"[^/]+\.data/(?P<scheme>[a-z]+)/(?P<rest>.+)")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A wheel's size in bytes and the files it installs: path below site-packages to RECORD hash."""

    size: int
    files: Mapping[str, str]


def installed_path(path: str) -> str:
    """Where RECORD's `path` lands, relative to site-packages (`bin/` for scripts, `data/` for the prefix)."""
    match = _DATA.fullmatch(path)
    if match is None:
        return path
    prefix = {"purelib": "", "platlib": "", "scripts": "bin/"}.get(match["scheme"], match["scheme"] + "/")
    return prefix + match["rest"]


def parse_record(text: str) -> dict[str, str]:
    """RECORD's files with their hashes, without the wheel's own `.dist-info`."""
    return {
        installed_path(row[0]): row[1]
        for row in csv.reader(text.splitlines())
        if len(row) >= 2 and ".dist-info/" not in row[0]
    }


def clobbered(contents: Mapping[str, Contents]) -> list[str]:
    """A sentence for each pair of distributions that write different bytes to the same file. Pure."""
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


def read_all(places: Mapping[str, tuple[str, str]], say: Callable[[str], None]) -> dict[str, Contents]:
    """The contents of several wheels at once; `places` gives for each name (URL, sha256)."""
    missing = sum(not _cache(sha256).exists() for _, sha256 in places.values())
    if missing:
        say(f"reading the file lists of {missing} wheels")
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(places, pool.map(lambda place: read(*place), places.values()), strict=True))


def read(url: str, sha256: str) -> Contents:
    """The contents of the wheel at `url` (`https:` by ranged requests, or `file:`).

    A source archive's files are not known before it is built; in the image they are compared all the same.
    """
    cache = _cache(sha256)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not there, or damaged: read again
        stored = json.loads(cache.read_text(encoding="utf-8"))
        return Contents(size=stored["size"], files=stored["files"])
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            path = Path(unquote(parts.path))
            with ZipFile(path) as wheel:
                contents = Contents(size=path.stat().st_size, files=parse_record(_record(wheel)))
        else:
            contents = _read_remote(url)
    except BadZipFile as error:
        raise KnowngoodError(f"{parts.path.rpartition('/')[2]} is not a wheel: {error}") from None
    cache.parent.mkdir(parents=True, exist_ok=True)
    write_text(cache, json.dumps({"size": contents.size, "files": contents.files}))
    return contents


def _read_remote(url: str) -> Contents:
    import requests
    from remotezip import RemoteIOError, RemoteZip

    try:
        for attempt in retrying.attempts(on=(RemoteIOError, requests.RequestException), attempts=4):
            with attempt, _session(url) as session:
                head = session.head(url, timeout=60, allow_redirects=True, headers={"Accept-Encoding": "identity"})
                head.raise_for_status()
                size = int(head.headers["Content-Length"])
                if url.endswith(".tar.gz"):
                    return Contents(size=size, files={})
                with RemoteZip(url, session=session, timeout=60) as wheel:
                    return Contents(size=size, files=parse_record(_record(wheel)))
    except (RemoteIOError, requests.RequestException, KeyError) as error:
        raise MissingError(
            f"the index does not give {url.rpartition('/')[2]}: {error}; check the network and run it again"
        ) from None
    raise AssertionError


def _session(url: str) -> requests.Session:
    """A session with what the host's settings say of the server: certificates and the credentials of its index."""
    import requests

    settings = host.settings()
    session = requests.Session()
    if "ca" in settings.files:
        session.verify = str(settings.files["ca"])
    session.auth = settings.credentials(url)
    return session


def _record(wheel: ZipFile) -> str:
    names = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    if not names:
        raise BadZipFile("it has no RECORD")
    return wheel.read(names[0]).decode()


def _cache(sha256: str) -> Path:
    return cache_dir() / "contents" / f"{sha256}.json"
