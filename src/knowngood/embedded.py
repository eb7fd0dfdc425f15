"""The embedded engine: Debian's own Docker packages, unpacked into a folder and run from there.

Nothing is installed. The files live under the cache folder, the sockets under /run (a socket's path may have
108 characters, a cache folder's may have more); `down` removes both. There is no bridge and no firewall rule:
builds and containers use the host's network or none.
"""

from __future__ import annotations

import contextlib
import hashlib
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

from knowngood import apt, daemon, debian, paths
from knowngood.errors import KnowngoodError, MissingError

# Debian 12's engine is older than BuildKit 0.13; later releases, and Ubuntu's updates, have a newer one.
ENGINE_SUITE = {"bookworm": "trixie"}
PACKAGES = ("docker.io", "containerd", "docker-buildx", "tini")
RUNTIME = "runc"  # links against the host's glibc: always from the host's own suite
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")
START_SECONDS = 60.0
STOP_SECONDS = 20.0

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the embedded engine of one cache folder keeps its things."""

    home: Path
    run: Path

    @property
    def tools(self) -> Path:
        return self.home / "tools"

    @property
    def docker(self) -> Path:
        return self.tools / "usr/bin/docker"

    @property
    def docker_config(self) -> Path:
        return self.home / "docker-config"

    @property
    def log(self) -> Path:
        return self.home / "dockerd.log"

    @property
    def socket(self) -> Path:
        return self.run / "docker.sock"

    @property
    def record(self) -> Path:
        return self.run / "daemon.json"

    @property
    def path(self) -> str:
        folders = [self.tools / "usr/sbin", self.tools / "usr/bin"]
        return ":".join([*map(str, folders), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])


@dataclass(frozen=True, kw_only=True)
class Status:
    """What there is of the embedded engine."""

    unpacked: bool
    running: bool
    version: str | None
    host: str
    data: Path


def places(cache: Path | None = None) -> Places:
    """The places that belong to a cache folder (the usual one unless given)."""
    home = (cache or paths.cache_dir()) / "engine"
    name = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:10]
    return Places(home=home, run=Path("/run") / f"knowngood-{name}")


def configuration(at: Places) -> dict[str, object]:
    """The daemon's configuration: everything private, no network of its own, one cgroup."""
    return {
        "features": {"containerd-snapshotter": True},
        "hosts": [f"unix://{at.socket}"],
        "data-root": str(at.home / "data"),
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
        "builder": {"gc": {"enabled": True, "defaultKeepStorage": "40GB"}},
    }


def unsuitable() -> str | None:
    """Why this machine cannot run the embedded engine, as a sentence; None if it can."""
    install = "install Docker Engine 26 or newer with buildx and start it"
    if sys.platform != "linux":
        return f"the embedded engine runs on Linux only: {install}"
    if platform.machine() != "x86_64":
        return f"the embedded engine is for x86_64, this machine is {platform.machine()}: {install}"
    if os.geteuid() != 0:
        return f"the embedded engine needs root: run knowngood as root, or {install}"
    if not places().docker.exists() and debian.this_host() is None:
        return f"the embedded engine is made of Debian or Ubuntu packages, and there is no apt here: {install}"
    return None


def version(at: Places | None = None) -> dict[str, str] | None:
    """What the running engine says of itself; None if none answers."""
    at = at or places()
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(10)
        connection.sock.connect(str(at.socket))
        connection.request("GET", "/version")
        answer = json.loads(connection.getresponse().read())
        return {"version": str(answer["Version"]), "api": str(answer["ApiVersion"])}
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    finally:
        connection.close()


def status() -> Status:
    """What there is of the embedded engine now."""
    at = places()
    answer = version(at)
    return Status(
        unpacked=at.docker.exists(),
        running=answer is not None,
        version=answer["version"] if answer else None,
        host=f"unix://{at.socket}",
        data=at.home / "data",
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
        unpack(at, say)
        _start(at, say)


def down(say: Say) -> None:
    """Stop the embedded engine and remove everything it made, images and caches included."""
    at = places()
    if not at.home.exists() and not at.run.exists():
        say("no embedded engine here")
        return
    if os.geteuid() != 0:
        raise MissingError("stopping the embedded engine needs root")
    with paths.locked(paths.cache_dir()):
        _sweep(at)
        shutil.rmtree(at.home)
    with contextlib.suppress(OSError):
        paths.cache_dir().rmdir()  # only if there is nothing else in it
    say("embedded engine stopped and removed")


def unpack(at: Places, say: Say) -> None:
    """Fetch and unpack the engine's packages, unless they are there."""
    if at.tools.exists():
        return
    host = debian.this_host()
    if host is None:
        raise MissingError(unsuitable() or "there is no apt here to fetch the embedded engine with")
    began = time.monotonic()
    suite = ENGINE_SUITE.get(host.codename, host.codename)
    work = at.home / "tools.part"
    shutil.rmtree(work, ignore_errors=True)
    say(f"fetching the embedded engine: {', '.join(PACKAGES)} from {host.distribution.title()} {suite}")
    newer = apt.PrivateApt(work / "apt", debian.host_archives(suite))
    newer.refresh()
    names = [*PACKAGES, *(name for name in ("docker-cli",) if newer.offers(name))]
    if suite == host.codename:
        newer.download([*names, RUNTIME], work / "debs")
    else:
        newer.download(names, work / "debs")
        own = apt.PrivateApt(work / "own-apt", debian.host_archives())
        own.refresh()
        own.download([RUNTIME], work / "debs")
    for package in sorted((work / "debs").glob("*.deb")):
        apt.unpack(package, work / "tools")
    for program in ("usr/sbin/dockerd", "usr/bin/containerd", "usr/sbin/runc", "usr/bin/docker"):
        apt.run([str(work / "tools" / program), "--version"])  # or it says which library is too old
    (work / "tools").rename(at.tools)
    shutil.rmtree(work)
    say(f"embedded engine unpacked in {time.monotonic() - began:.0f} s")


def configure_client(at: Places) -> None:
    """Give the docker command line its buildx, and the user's registry logins by reference."""
    plugins = at.docker_config / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    _link(plugins / "docker-buildx", at.tools / "usr/libexec/docker/cli-plugins/docker-buildx")
    logins = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    if logins.exists() and logins.parent != at.docker_config:
        _link(at.docker_config / "config.json", logins)


def _link(name: Path, target: Path) -> None:
    if not (name.is_symlink() and name.readlink() == target):
        temporary = name.with_name(f".{name.name}.{os.getpid()}")
        temporary.symlink_to(target)
        temporary.replace(name)


def _start(at: Places, say: Say) -> None:
    began = time.monotonic()
    borrowed = _borrowed()
    at.run.mkdir(mode=0o711)
    (at.run / "borrowed.json").write_text(json.dumps(borrowed))
    (at.home / "daemon.json").write_text(json.dumps(configuration(at), indent=2))
    configure_client(at)
    at.log.unlink(missing_ok=True)
    process = daemon.start(
        [str(at.tools / "usr/sbin/dockerd"), "--config-file", str(at.home / "daemon.json")],
        init=at.tools / "usr/bin/tini-static",
        env={
            **{name: value for name, value in os.environ.items() if name.lower() in PASSED_ON},
            "PATH": at.path,
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
    say(f"embedded engine {answer['version']} is up after {time.monotonic() - began:.1f} s")


# Folders that dockerd and containerd create wherever their state is told to be.
_SHARED = (
    Path("/run/docker/plugins"),
    Path("/run/docker"),
    Path("/run/containerd/s"),
    Path("/run/containerd"),
)


def _borrowed() -> list[str]:
    """Those of the shared folders that are there for embedded engines only: the last of them removes them."""
    others: set[str] = set()
    for record in Path("/run").glob("knowngood-*/borrowed.json"):
        with contextlib.suppress(OSError, ValueError):
            others |= set(json.loads(record.read_text()))
    return [str(path) for path in _SHARED if not path.exists() or str(path) in others]


def _sweep(at: Places) -> None:
    """End what runs of the engine and remove all of it that is not in its home."""
    if process := daemon.load(at.record):
        daemon.stop(process, patience=STOP_SECONDS)
    for folder in _cgroups(at.run.name):
        with contextlib.suppress(OSError):
            folder.rmdir()
    with contextlib.suppress(OSError, ValueError):
        for path in json.loads((at.run / "borrowed.json").read_text()):
            with contextlib.suppress(OSError):
                Path(path).rmdir()  # only if no one else put anything there
    shutil.rmtree(at.run, ignore_errors=True)


def _cgroups(name: str) -> Iterator[Path]:
    """The engine's cgroups, innermost first: one tree a controller (v1), or one (v2)."""
    for top in [*Path("/sys/fs/cgroup").glob(name), *Path("/sys/fs/cgroup").glob(f"*/{name}")]:
        for folder, _, _ in os.walk(top, topdown=False):
            yield Path(folder)
