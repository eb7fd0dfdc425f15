"""The embedded engine's programs: fetched as Debian packages, unpacked into a folder, installed nowhere."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from knowngood import paths
from knowngood.errors import KnowngoodError, MissingError
from knowngood.system import apt, debian

# Debian 12's engine is older than BuildKit 0.13; later releases, and Ubuntu's updates, have a newer one.
ENGINE_SUITE = {"bookworm": "trixie"}
PACKAGES = ("docker.io", "containerd", "docker-buildx", "tini")
OPTIONAL = ("docker-cli",)  # Ubuntu has the command line in docker.io
RUNTIME = "runc"  # links against the host's glibc: always from the host's own suite
PROGRAMS = ("dockerd", "containerd", "runc", "docker", "tini-static")
DPKG_STATUS = Path("/var/lib/dpkg/status")

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the embedded engine of one cache folder keeps its things."""

    home: Path
    run: Path

    @property
    def tools(self) -> Path:
        """The unpacked packages; whole as soon as it exists."""
        return self.home / "tools"

    @property
    def docker(self) -> Path:
        """The docker command."""
        return self.tools / "usr/bin/docker"

    @property
    def buildx(self) -> Path:
        """Its plugin."""
        return self.tools / "usr/libexec/docker/cli-plugins/docker-buildx"

    @property
    def docker_config(self) -> Path:
        """The value of DOCKER_CONFIG with which the docker command finds the plugin."""
        return self.home / "docker-config"

    @property
    def data(self) -> Path:
        """Images, containers and build caches."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """What the daemon says."""
        return self.home / "dockerd.log"

    @property
    def socket(self) -> Path:
        """Where the engine answers; in /run, because the path of a socket may have 108 characters only."""
        return self.run / "docker.sock"

    @property
    def record(self) -> Path:
        """Which process the daemon is."""
        return self.run / "daemon.json"

    @property
    def borrowed(self) -> Path:
        """Which folders outside of ours exist because of this engine."""
        return self.run / "borrowed.json"


def places(cache: Path | None = None) -> Places:
    """The places that belong to a cache folder (the usual one unless given)."""
    home = (cache or paths.cache_dir()) / "engine"
    name = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:10]
    return Places(home=home, run=Path("/run") / f"knowngood-{name}")


def unpack(at: Places, say: Say) -> None:
    """Fetch and unpack the packages, unless they are there; what is half-done counts for nothing."""
    if at.tools.exists():
        return
    host = debian.this_host()
    if host is None:
        raise MissingError("there is no apt here to fetch the embedded engine with")
    began = time.monotonic()
    suite = ENGINE_SUITE.get(host.codename, host.codename)
    work = at.home / "tools.part"
    shutil.rmtree(work, ignore_errors=True)
    say(f"fetching the embedded engine: {', '.join(PACKAGES)} from {host.distribution.title()} {suite}")
    engine = apt.PrivateApt(work / "apt", debian.host_archives(suite))
    engine.refresh()
    engine.download([*PACKAGES, *filter(engine.offers, OPTIONAL)], work / "debs")
    own = engine
    if suite != host.codename:
        own = apt.PrivateApt(work / "own-apt", debian.host_archives())
        own.refresh()
    own.download([RUNTIME], work / "debs")
    for package in sorted((work / "debs").glob("*.deb")):
        apt.unpack(package, work / "tools")
    try:
        _try_out(work / "tools")
    except KnowngoodError:  # a library is missing here
        _add_libraries(work, suite)
        _try_out(work / "tools")
    (work / "tools").rename(at.tools)
    shutil.rmtree(work)
    say(f"embedded engine unpacked in {time.monotonic() - began:.0f} s")


def _add_libraries(work: Path, suite: str) -> None:
    """Fetch the libraries that the packages need and the host has not."""
    lacking = apt.PrivateApt(work / "lib-apt", debian.host_archives(suite), installed=DPKG_STATUS)
    lacking.refresh()
    names = [remote.name for remote in lacking.resolve(PACKAGES) if remote.name.startswith("lib")]
    for package in lacking.download(names, work / "libs"):
        apt.unpack(package, work / "tools")


def _try_out(tools: Path) -> None:
    for program in PROGRAMS:
        apt.run([which(program, tools), "--version"], env=environment(tools))
    # It runs itself again for each container, with an environment of its own: no library of the folder is found then.
    bare = {name: value for name, value in environment(tools).items() if name != "LD_LIBRARY_PATH"}
    try:
        apt.run([which(RUNTIME, tools), "--version"], env=bare)
    except KnowngoodError as error:
        raise MissingError(f"{error}; {RUNTIME} needs that library in the system's own folders: install it") from None


def environment(tools: Path) -> dict[str, str]:
    """What the programs need in their environment."""
    system = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    found = {"PATH": ":".join([str(tools / "usr/sbin"), str(tools / "usr/bin"), *system])}
    if libraries := [str(path) for path in (*tools.glob("usr/lib/*-linux-gnu"), *tools.glob("lib/*-linux-gnu"))]:
        found["LD_LIBRARY_PATH"] = ":".join(libraries)
    return found


def which(program: str, tools: Path) -> str:
    """The path of an unpacked program: releases differ in which folder has it."""
    found = shutil.which(program, path=f"{tools / 'usr/sbin'}:{tools / 'usr/bin'}")
    if found is None:
        raise KnowngoodError(f"the packages of the embedded engine have no {program}: file a bug")
    return found


def configure_client(at: Places) -> None:
    """Give the docker command its buildx, and the user's registry logins by reference."""
    plugins = at.docker_config / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    _link(plugins / "docker-buildx", at.buildx)
    logins = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    if logins.exists() and logins.parent != at.docker_config:
        _link(at.docker_config / "config.json", logins)


def _link(name: Path, target: Path) -> None:
    if not (name.is_symlink() and name.readlink() == target):
        temporary = name.with_name(f".{name.name}.{os.getpid()}")
        temporary.symlink_to(target)
        temporary.replace(name)
