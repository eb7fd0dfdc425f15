"""A package index on the loopback interface, with a login if wanted, that serves damaged wheels on request."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import random
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field

from knowngood.lock.cell_lock import Distribution

Damage = Callable[[bytes], bytes]


def flip(data: bytes) -> bytes:
    """Change one byte in the middle."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def truncate(data: bytes) -> bytes:
    """Leave the second half out; the server states the new length."""
    return data[: len(data) // 2]


def replace(data: bytes) -> bytes:
    """Return a sound wheel of the same release with other content."""
    name = data[30 : data.index(b"/")].decode()
    return make_wheel(name, seed=2)


def make_wheel(name: str, *, seed: int = 1, size: int = 100_000) -> bytes:
    """Return a wheel of release 1.0 of a package, with a file of random bytes."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": b"",
        f"{name}/data.bin": random.Random(seed).randbytes(size),  # noqa: S311
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


@dataclass
class Index:
    """An index that serves wheels by file name. `damage` is applied to what it serves, not to the hashes it states."""

    login: tuple[str, str] | None = None
    """User and password; without the right ones the index answers 401."""
    wheels: dict[str, bytes] = field(default_factory=dict)
    damage: dict[str, Damage] = field(default_factory=dict)
    stops: set[str] = field(default_factory=set)
    """Wheels whose transfer ends before the length that was stated."""
    requests: list[str] = field(default_factory=list)
    logins: set[str] = field(default_factory=set)
    """The `Authorization` headers that were received."""

    def start(self) -> None:
        """Serve on a free port of this machine, in a thread, until `stop` is called."""
        handler = type("OneIndex", (_Handler,), {"index": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}/simple"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """End the thread that serves, and close its port."""
        self._server.shutdown()
        self._server.server_close()

    def publish(self, name: str) -> Distribution:
        """Add a wheel of a package, and return what a lock says of it."""
        file, data = f"{name}-1.0-py3-none-any.whl", make_wheel(name)
        self.wheels[file] = data
        return Distribution(
            name=name, version="1.0", file=file, sha256=hashlib.sha256(data).hexdigest(), size=len(data)
        )


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    index: Index

    def log_message(self, *_args) -> None:
        pass

    def do_GET(self) -> None:
        index = self.index
        self.index.requests.append(self.path)
        given = self.headers.get("Authorization", "")
        index.logins |= {given} - {""}
        if index.login:
            wanted = "Basic " + base64.b64encode(":".join(index.login).encode()).decode()
            if given != wanted:
                self.answer(401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
                return
        name = self.path.rstrip("/").rpartition("/")[2]
        if name in index.wheels:
            good = index.wheels[name]
            self.answer(200, index.damage.get(name, bytes)(good), stop=name in index.stops)
            return
        files = {file: data for file, data in index.wheels.items() if file.startswith(f"{name}-")}
        links = [
            f'<a href="../../files/{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a>'
            for file, data in files.items()
        ]
        self.answer(200 if files else 404, "".join(links).encode())

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, stop: bool = False) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": "text/html", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if stop else body)
        self.close_connection |= stop
