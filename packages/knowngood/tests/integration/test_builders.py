"""`knowngood build --builder NAME`: a buildx builder of the driver `remote` builds, and the engine gets the image."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import socketserver
import subprocess
import threading

import pytest
import small
from docker.errors import NotFound

pytestmark = pytest.mark.integration


class BuildKitSocket(socketserver.ThreadingUnixStreamServer):
    """The BuildKit of an engine behind a socket of its own, which does not speak the engine's protocol."""

    daemon_threads = True

    def __init__(self, path, engine):
        super().__init__(str(path), _Connection)
        self.argv, self.env = [*engine.docker, "buildx", "dial-stdio"], engine.environment()


class _Connection(socketserver.BaseRequestHandler):
    def handle(self):
        mine, theirs = socket.socketpair()
        with mine, subprocess.Popen(self.server.argv, stdin=theirs, stdout=theirs, env=self.server.env) as process:
            theirs.close()
            with contextlib.suppress(OSError):
                while True:
                    for side in select.select([self.request, mine], [], [])[0]:
                        data = side.recv(1 << 16)
                        if not data:
                            process.kill()
                            return
                        (mine if side is self.request else self.request).sendall(data)


@pytest.fixture
def builder(engine, tmp_path, monkeypatch):
    """Return the name of a builder that `docker buildx create` has made."""
    monkeypatch.setenv("BUILDX_CONFIG", str(tmp_path / "buildx"))
    path = tmp_path / "buildkit.sock"
    with BuildKitSocket(path, engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = ["buildx", "create", "--name", "far", "--driver", "remote", f"unix://{path}"]
        environment = {**engine.environment(), "BUILDX_CONFIG": os.environ["BUILDX_CONFIG"]}
        subprocess.run([*engine.docker, *words], check=True, capture_output=True, env=environment)
        yield "far"
        server.shutdown()


def build(here, cell, *words):
    process = small.command(here, "build", cell, "--json", *words)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out)["cells"][0]["image"]


def test_a_remote_builder_gives_the_digest_of_the_engine_s_own(project, engine, builder):
    here = small.project(project.root, small.TRANSFORMERS[0])
    cell = str(here.matrix.cells[0])
    with contextlib.closing(engine.client()) as client:
        try:
            remote = build(here, cell, "--builder", builder)
            assert remote["built"]
            assert client.images.get(f"knowngood:{cell}").id == remote["digest"]
            client.images.remove(f"knowngood:{cell}", force=True)
            own = build(here, cell, "--builder", "default")
            assert (own["built"], own["digest"]) == (True, remote["digest"])
        finally:
            with contextlib.suppress(NotFound):
                client.images.remove(f"knowngood:{cell}", force=True)
