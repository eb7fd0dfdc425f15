"""The embedded engine: a Docker daemon run from unpacked packages, where no engine answers.

Its files live under the cache folder, its sockets under /run; `down` removes both. It has no bridge and no firewall
rule: builds and containers use the host's network or none.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from knowngood import paths
from knowngood.engines import daemon
from knowngood.engines.unpacked import Places, configure_client, environment, places, unpack, which
from knowngood.errors import KnowngoodError, MissingError
from knowngood.system import debian

__all__ = ["Places", "Status", "configure_client", "down", "places", "status", "unpack", "unsuitable", "up", "version"]

PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
ANSWER_SECONDS = 10.0
# Folders that the programs create wherever their state is told to be; inner ones first.
SHARED = ("/run/docker/plugins", "/run/docker", "/run/containerd/s", "/run/containerd", "/run/runc")

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Status:
    """What there is of the embedded engine."""

    unpacked: bool
    running: bool
    version: str | None
    host: str
    data: Path
    log: Path


def configuration(at: Places) -> dict[str, object]:
    """The daemon's configuration: everything private, no network of its own, one cgroup."""
    return {
        "features": {"containerd-snapshotter": True},
        "hosts": [f"unix://{at.socket}"],
        "data-root": str(at.data),
        "exec-root": str(at.run / "exec"),
        "pidfile": str(at.run / "dockerd.pid"),
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{at.run.name}",
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "ip-masq": False,
        "ip-forward": False,
        "userland-proxy": False,
        "shutdown-timeout": 5,
        "builder": {"gc": {"enabled": True, "defaultKeepStorage": "20GB"}},
    }


def unsuitable() -> str | None:
    """Why this machine cannot run the embedded engine, as the end of a sentence; None if it can."""
    install = "install Docker Engine 26 or newer with buildx and start it"
    if sys.platform != "linux":
        return f"the embedded engine runs on Linux only: {install}"
    if platform.machine() != "x86_64":
        return f"the embedded engine is for x86_64, this machine is {platform.machine()}: {install}"
    if os.geteuid() != 0:
        return f"the embedded engine needs root: run knowngood as root, or {install}"
    if not places().tools.exists() and debian.this_host() is None:
        return f"the embedded engine is made of Debian or Ubuntu packages, and there is no apt here: {install}"
    return None


def version(at: Places) -> str | None:
    """The version of the engine that answers there; None if none does."""
    connection = http.client.HTTPConnection("localhost", timeout=ANSWER_SECONDS)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(ANSWER_SECONDS)
        connection.sock.connect(str(at.socket))
        connection.request("GET", "/version")
        return str(json.loads(connection.getresponse().read())["Version"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    finally:
        connection.close()


def status() -> Status:
    """What there is of the embedded engine now."""
    at = places()
    answer = version(at)
    return Status(
        unpacked=at.tools.exists(),
        running=answer is not None,
        version=answer,
        host=f"unix://{at.socket}",
        data=at.data,
        log=at.log,
    )


def up(say: Say) -> None:
    """Bring the embedded engine up; nothing happens if it already answers."""
    if reason := unsuitable():
        raise MissingError(reason)
    at = places()
    with paths.locked(paths.cache_dir()):
        if daemon.load(at.record) and version(at):
            return
        _sweep(at)
        borrowed = _borrowed(at)
        unpack(at, say)
        _start(at, borrowed, say)


def down(say: Say) -> None:
    """Stop the embedded engine and remove everything it made, images and build caches included."""
    at = places()
    if not at.home.exists() and not at.run.exists():
        say("there is no embedded engine")
        return
    if os.geteuid() != 0:
        raise MissingError("stopping the embedded engine needs root")
    with paths.locked(paths.cache_dir()):
        _sweep(at)
        if at.home.exists():
            shutil.rmtree(at.home)
    with contextlib.suppress(OSError):
        paths.cache_dir().rmdir()  # only if there is nothing else in it
    say("the embedded engine is stopped and removed")


def _start(at: Places, borrowed: list[str], say: Say) -> None:
    began = time.monotonic()
    configure_client(at)
    at.run.mkdir(mode=0o711)
    at.borrowed.write_text(json.dumps(borrowed))
    config = at.home / "daemon.json"
    config.write_text(json.dumps(configuration(at), indent=2))
    at.log.unlink(missing_ok=True)
    process = daemon.start(
        [which("dockerd", at.tools), "--config-file", str(config)],
        init=Path(which("tini-static", at.tools)),
        env={
            **{name: value for name, value in os.environ.items() if name.lower() in PASSED_ON},
            **environment(at.tools),
            "HOME": str(Path.home()),
        },
        log=at.log,
        record=at.record,
    )
    while not (answer := version(at)):
        if not process.alive() or time.monotonic() - began > START_SECONDS:
            last = "\n".join(at.log.read_text(errors="replace").splitlines()[-15:])
            _sweep(at)
            raise KnowngoodError(f"the embedded engine did not come up; the end of its log:\n{last}")
        time.sleep(0.05)
    say(f"embedded engine {answer} is up after {time.monotonic() - began:.1f} s")


def _borrowed(at: Places) -> list[str]:
    """The shared folders that are there for embedded engines only: the last of them removes them."""
    others = _borrowed_by_others(at)
    return [path for path in SHARED if path in others or not Path(path).exists()]


def _borrowed_by_others(at: Places) -> set[str]:
    records = set(Path("/run").glob(f"knowngood-*/{at.borrowed.name}")) - {at.borrowed}
    return {path for record in records for path in _read_list(record)}


def _read_list(record: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        return [str(path) for path in json.loads(record.read_text())]
    return []


def _sweep(at: Places) -> None:
    """End what runs of the engine, and remove all of it that is not in its home."""
    if process := daemon.load(at.record):
        daemon.stop(process, patience=STOP_SECONDS)
    for folder in _cgroups(at.run.name):
        with contextlib.suppress(OSError):
            folder.rmdir()
    needed = _borrowed_by_others(at)
    for path in _read_list(at.borrowed):
        if path not in needed:
            with contextlib.suppress(OSError):
                Path(path).rmdir()  # only if no one else put anything there
    shutil.rmtree(at.run, ignore_errors=True)


def _cgroups(name: str) -> Iterator[Path]:
    """The engine's cgroups, inner ones first: one tree a controller (v1), or one (v2)."""
    for top in [*Path("/sys/fs/cgroup").glob(name), *Path("/sys/fs/cgroup").glob(f"*/{name}")]:
        for folder, _, _ in os.walk(top, topdown=False):
            yield Path(folder)
