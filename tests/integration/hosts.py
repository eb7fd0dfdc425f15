"""A fleet for tests: engines in separate network namespaces, a registry and a proxy that they can reach.

Each namespace has one virtual cable to this machine, and nothing is forwarded. The engines reach a registry with its
own certificate, and, through the proxy, the package index. On a machine that cannot create namespaces, the engines
share its network. An engine can be limited to certain processors.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import socketserver
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
import registry_server

from knowngood.engine import daemon, embedded_engine, unpacked_engine

ADDRESS = "198.18.77.1"
"""Address of this machine for the engines, from the block reserved for network tests (RFC 2544)."""
LOOPBACK = "127.0.0.1"
"""Address of this machine for engines that share its network."""


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


class Server(registry_server.Server):
    """A registry with TLS, on an address that the engines reach."""

    def __init__(self, program: Path, folder: Path, bundle: Path, ip: str = ADDRESS) -> None:
        super().__init__(program, folder)
        self.folder, self.bundle = folder, bundle
        self.address = f"{ip}:{self.address.rpartition(':')[2]}"
        key, own = folder / "key.pem", folder / "cert.pem"
        words = ["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        names = ["-subj", "/CN=registry", "-addext", f"subjectAltName=IP:{ip}"]
        run("openssl", *words, *names, "-keyout", str(key), "-out", str(own))
        known = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
        bundle.write_text(known.read_text() + own.read_text())
        self._config.write_text(
            f"version: 0.1\nhttp: {{addr: {self.address}, tls: {{certificate: {own}, key: {key}}}}}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}\n"
        )

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._program, "serve", self._config], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        trusted = ssl.create_default_context(cafile=str(self.bundle))
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
        opener = urllib.request.build_opener(*handlers)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), opener.open(f"https://{self.address}/v2/", timeout=1):
                return
            time.sleep(0.05)
        raise AssertionError("the registry did not answer within 20 s")


class Proxy(socketserver.ThreadingTCPServer):
    """A proxy for CONNECT requests. Each machine receives answers with at most `rate` bytes per second."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, rate: float | None = None, ip: str = ADDRESS) -> None:
        super().__init__((ip, 0), _Connect)
        self.rate = rate
        self._free: dict[str, float] = {}
        """For each machine, the time when its line is free again."""
        self._lock = threading.Lock()
        self.url = f"http://{ip}:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def wait(self, machine: str, size: int) -> None:
        """Wait until so many bytes have gone over the line to a machine."""
        if self.rate is None:
            return
        with self._lock:
            begin = max(time.monotonic(), self._free.get(machine, 0))
            self._free[machine] = begin + size / self.rate
        time.sleep(max(0, self._free[machine] - time.monotonic()))

    def handle_error(self, request, client_address) -> None:
        """Ignore errors: a builder that is killed breaks its connections."""


class _Connect(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split()
        assert method == "CONNECT"
        while self.rfile.readline().strip():
            pass
        host, _, port = target.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as there:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            relay(self.connection, there, lambda size: self.server.wait(self.client_address[0], size))


def relay(one: socket.socket, other: socket.socket, passed=lambda _size: None) -> None:
    """Relay in both directions until one side ends; `passed` is called with the size of each block from `other`."""
    with contextlib.suppress(OSError):
        while True:
            for side in select.select([one, other], [], [])[0]:
                data = side.recv(1 << 16)
                if not data:
                    return
                if side is other:
                    passed(len(data))
                (other if side is one else one).sendall(data)


class Plug(socketserver.ThreadingUnixStreamServer):
    """The BuildKit of an engine as a separate server: a socket with BuildKit's protocol, not the engine's."""

    daemon_threads = True

    def __init__(self, path: Path, buildx: Path, address: str) -> None:
        super().__init__(str(path), _Dialled)
        self.argv, self.env = [str(buildx), "dial-stdio"], {**os.environ, "DOCKER_HOST": address}
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Dialled(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        mine, theirs = socket.socketpair()
        with mine, subprocess.Popen(self.server.argv, stdin=theirs, stdout=theirs, env=self.server.env) as process:
            theirs.close()
            relay(self.request, mine)
            process.kill()


class Host:
    """An engine with its own cache folder, data root and socket, limited to `processors` if any are given."""

    def __init__(self, folder: Path, bundle: Path, processors: Sequence[int] = ()) -> None:
        self._folder, self._bundle = folder, bundle
        self._before = ["taskset", "--cpu-list", ",".join(map(str, processors))] if processors else []
        """Command words in front of the daemon's command."""
        self.engine = unpacked_engine.engine_paths(folder)
        self.address = f"unix://{self.engine.socket}"

    def up(self) -> None:
        self.start()

    def start(self) -> None:
        tools = unpacked_engine.engine_paths().tools
        started = daemon.start_daemon

        def there(argv, **more):
            return started([*self._before, *argv], **more)

        with self._own_cache() as patch:
            if tools.exists() and not self.engine.tools.exists():
                self.engine.home.mkdir(parents=True)
                self.engine.tools.symlink_to(tools)
            for name in embedded_engine.PASSED_ON:
                for word in (name, name.upper()):
                    patch.delenv(word, raising=False)
            patch.setenv("SSL_CERT_FILE", str(self._bundle))
            patch.setattr(daemon, "start_daemon", there)
            embedded_engine.start_embedded_engine(print)

    def kill(self) -> None:
        """Kill the daemon and everything that runs below it, as kill -9 does."""
        process = daemon.load_process(self.engine.record)
        assert process is not None
        for init in process.children():
            init.send(signal.SIGKILL)
        assert process.wait(10)

    def down(self) -> None:
        with self._own_cache():
            embedded_engine.remove_embedded_engine(print)

    @contextlib.contextmanager
    def _own_cache(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KNOWNGOOD_CACHE", str(self._folder))
            yield patch


class Apart(Host):
    """An engine in its own network namespace."""

    def __init__(self, number: int, folder: Path, bundle: Path, processors: Sequence[int] = ()) -> None:
        super().__init__(folder, bundle, processors)
        self._namespace = folder.with_suffix(".net")
        self._cable = f"kg{os.getpid() % 100000}{number}"
        self._net = f"198.18.77.{number * 4 + 4}"
        self._before += ["nsenter", f"--net={self._namespace}", "--"]

    def up(self) -> None:
        base, _, last = self._net.rpartition(".")
        mine, theirs = f"{base}.{int(last) + 1}", f"{base}.{int(last) + 2}"
        inside = ("nsenter", f"--net={self._namespace}", "ip")
        self._namespace.touch()
        run("unshare", f"--net={self._namespace}", "true")
        run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "cable", "netns", str(self._namespace))
        run("ip", "address", "add", f"{mine}/30", "dev", self._cable)
        run("ip", "link", "set", self._cable, "up")
        run(*inside, "address", "add", f"{theirs}/30", "dev", "cable")
        for link in ("lo", "cable"):
            run(*inside, "link", "set", link, "up")
        run(*inside, "route", "add", "default", "via", mine)
        self.start()

    def down(self) -> None:
        super().down()
        subprocess.run(["ip", "link", "del", self._cable], check=False, capture_output=True)
        subprocess.run(["umount", self._namespace], check=False, capture_output=True)


def ran(text: str) -> list[str]:
    """Return the stages of the RUN steps that BuildKit really ran in a build, read from its progress output.

    Cached steps are left out, and also steps whose result was fetched: these only show blobs.
    """
    steps = dict(re.findall(r"^#(\d+) \[(?:\S+ +)?(\S+) +\d+/\d+\] RUN ", text, re.MULTILINE))
    done = set(re.findall(r"^#(\d+) DONE ", text, re.MULTILINE))
    taken = set(re.findall(r"^#(\d+) (?:CACHED$|sha256:|extracting sha256:)", text, re.MULTILINE))
    return [stage for number, stage in steps.items() if number in done - taken]


@contextlib.contextmanager
def fleet(
    program: Path,
    folder: Path,
    count: int,
    *,
    rate: float | None = None,
    apart: bool = True,
    processors: Sequence[Sequence[int]] = (),
):
    """Start `count` engines, a registry and a proxy; without `apart` they share this machine's network.

    `processors` lists the processors of each engine; without it, each engine uses all processors.
    """
    ip = ADDRESS if apart else LOOPBACK
    with contextlib.ExitStack() as stack:
        if apart:
            run("ip", "address", "replace", f"{ip}/32", "dev", "lo")
            removal = ["ip", "address", "del", f"{ip}/32", "dev", "lo"]
            stack.callback(subprocess.run, removal, check=False, capture_output=True)
        bundle = folder / "bundle.pem"
        (folder / "registry").mkdir()
        server = Server(program, folder / "registry", bundle, ip)
        server.start()
        stack.callback(server.kill)
        proxy = Proxy(rate, ip)
        stack.callback(proxy.server_close)
        stack.callback(proxy.shutdown)
        hosts = []
        for number in range(count):
            place, own = folder / f"host{number}", processors[number] if processors else ()
            host = Apart(number, place, bundle, own) if apart else Host(place, bundle, own)
            stack.callback(host.down)
            host.up()
            hosts.append(host)
        yield hosts, server, proxy
