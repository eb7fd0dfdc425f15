"""Debian's `docker-registry` on the loopback interface, and a proxy in front of it that misbehaves on request."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from knowngood.base import debian_host, private_apt

_PASSED = ("content-type", "accept", "content-range", "range", "host", "authorization")
_BLOCK = 1 << 16


def unpack(folder: Path) -> Path:
    """Unpack the registry's program into a folder, without installing it; return its path."""
    packages = private_apt.PrivateApt(folder / "apt", debian_host.find_host_archives())
    packages.refresh()
    for package in packages.download(["docker-registry"], folder):
        if package.name.startswith("docker-registry_"):
            private_apt.unpack_deb(package, folder / "root")
    return folder / "root/usr/bin/docker-registry"


class Server:
    """A registry that can be killed and started again with the same data."""

    def __init__(self, program: Path, folder: Path, *, cache: bool = False) -> None:
        """`cache` keeps the sizes of blobs in memory, as Debian's own configuration of the registry does."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._program = program
        self.storage = folder / "blobs/docker/registry/v2"
        self._config = folder / "config.yml"
        self._config.write_text(
            f"version: 0.1\nhttp: {{addr: {self.address}}}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder}/blobs}}"
            + (", cache: {blobdescriptor: inmemory}}\n" if cache else "}\n")
        )
        self._process: subprocess.Popen[bytes] | None = None

    def blob_path(self, digest: str) -> Path:
        """Return the file in which the registry keeps a blob or a manifest."""
        name = digest.removeprefix("sha256:")
        return self.storage / "blobs/sha256" / name[:2] / name / "data"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._program, "serve", self._config], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self.address}/v2/", timeout=1):
                return
            time.sleep(0.05)
        raise AssertionError("the registry did not answer within 20 s")

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


class Proxy(http.server.ThreadingHTTPServer):
    """Forwards requests to a server. Each rule in `rules` sees the request first; one that returns True has handled it.

    `requests` lists (method, path) of all requests.
    """

    daemon_threads = True

    def __init__(self, server: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server = server
        self.rules: list = []
        self.requests: list[tuple[str, str]] = []
        self.address = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle_error(self, request, client_address) -> None:
        """Ignore errors: the tests break connections on purpose."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *_args) -> None:
        pass

    def _serve(self) -> None:
        self.server.requests.append((self.command, self.path))
        for rule in list(self.server.rules):
            if rule(self):
                return
        self.forward()

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    def answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        """Send an answer without a body; read the request's body and drop it."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": "0"}.items():
            self.send_header(key, value)
        self.end_headers()

    def forward(self, *, change=None, keep: int | None = None, then=None, lose: int = 0) -> None:
        """Forward the request. `change` alters the body of the answer, `lose` cuts so many bytes off its end.

        `keep` sends only so many bytes of the request's body, and `then` is called after they were sent.
        """
        connection = http.client.HTTPConnection(self.server.server.address, timeout=60)
        try:
            length = int(self.headers.get("Content-Length") or 0)
            shortened = length if keep is None else min(keep, length)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for key, value in self.headers.items():
                if key.lower() in _PASSED:
                    connection.putheader(key, value)
            # For a server that is killed during a push, the announced length must be more than it received.
            connection.putheader("Content-Length", str(length if then else shortened))
            connection.endheaders()
            left = length
            while left and (block := self.rfile.read(min(_BLOCK, left))):
                if (rest := shortened - (length - left)) > 0:
                    connection.send(block[:rest])
                left -= len(block)
                if then and length - left >= shortened:
                    then()
                    self.close_connection = True
                    return
            answer = connection.getresponse()
            body = answer.read()
            if change:
                body = change(body)
            self.send_response(answer.status)
            for key, value in answer.getheaders():
                if key.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                    self.send_header(key, value)
            size = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", size)
            self.end_headers()
            self.wfile.write(body[: len(body) - lose])
            self.close_connection |= bool(lose)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            connection.close()
