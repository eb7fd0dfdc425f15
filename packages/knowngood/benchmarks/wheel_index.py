"""A folder of wheels as distributions of a lock, and a package index on the loopback interface that serves it."""

from __future__ import annotations

import contextlib
import hashlib
import html
import http.server
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from packaging.utils import parse_wheel_filename

from knowngood.lock.cell_lock import Distribution

LOOPBACK = "127.0.0.1"


def read(folder: Path) -> tuple[Distribution, ...]:
    """Return the folder's wheels as distributions, the largest first."""
    wheels = []
    for path in folder.glob("*.whl"):
        name, version, _, _ = parse_wheel_filename(path.name)
        with path.open("rb") as handle:
            sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
        size = path.stat().st_size
        wheels.append(Distribution(name=name, version=str(version), file=path.name, sha256=sha256, size=size))
    return tuple(sorted(wheels, key=lambda item: (-item.size, item.name)))


@contextlib.contextmanager
def served(folder: Path, wheels: Sequence[Distribution]) -> Iterator[str]:
    """Serve an index of these wheels until the block ends; yield its address."""
    pages: dict[str, bytes] = {}
    for item in wheels:
        data = _metadata(folder / item.file)
        pages[f"/files/{item.file}.metadata"] = data
        # With metadata beside it, a wheel is fetched once: this server does not answer range requests.
        known = f'data-core-metadata="sha256={hashlib.sha256(data).hexdigest()}"'
        link = f'<a href="/files/{html.escape(item.file)}#sha256={item.sha256}" {known}>{html.escape(item.file)}</a>'
        pages[f"/simple/{item.name}/"] = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
    files = {f"/files/{item.file}": folder / item.file for item in wheels}
    handler = type("Handler", (_Handler,), {"pages": pages, "files": files})
    with http.server.ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_address[1]}/simple/"
        server.shutdown()


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        name = next(
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1
        )
        return archive.read(name)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pages: ClassVar[dict[str, bytes]]
    files: ClassVar[dict[str, Path]]

    def do_GET(self) -> None:
        """Answer with a page or a whole file."""
        if page := self.pages.get(self.path):
            plain = self.path.endswith(".metadata")
            self._answer(200, len(page), "text/plain" if plain else "text/html")
            self.wfile.write(page)
        elif path := self.files.get(self.path):
            self._answer(200, path.stat().st_size, "application/octet-stream")
            with path.open("rb") as handle, contextlib.suppress(ConnectionError):
                self.connection.sendfile(handle)
        else:
            self._answer(404, 0, "text/plain")

    def _answer(self, status: int, size: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing: the builds' logs show what was fetched."""
