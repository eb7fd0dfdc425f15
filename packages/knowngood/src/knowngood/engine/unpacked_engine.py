"""The embedded engine's programs: Debian packages, fetched and unpacked into a folder, but not installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from knowngood.base import debian_host, private_apt
from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.engine.docker_logins import docker_config_path

# Debian 12's engine has a BuildKit older than 0.13; later releases, and Ubuntu's updates, have a newer one.
ENGINE_SUITE = {"bookworm": "trixie"}
PACKAGES = ("docker.io", "containerd", "docker-buildx", "tini")
OPTIONAL = ("docker-cli",)  # in Ubuntu it is part of docker.io
RUNTIME = "runc"  # linked against glibc, so it always comes from the host's own suite
PROGRAMS = ("dockerd", "containerd", "runc", "docker", "tini-static")
DPKG_STATUS = Path("/var/lib/dpkg/status")


@dataclass(frozen=True, kw_only=True)
class EnginePaths:
    """The files and folders of the embedded engine of one cache folder."""

    home: Path
    run: Path

    @property
    def tools(self) -> Path:
        """The unpacked packages; complete as soon as the folder exists."""
        return self.home / "tools"

    @property
    def docker(self) -> Path:
        """The path of the docker command."""
        return self.tools / "usr/bin/docker"

    @property
    def buildx(self) -> Path:
        """The path of the buildx plugin of the docker command."""
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
        """The file with the daemon's output."""
        return self.home / "dockerd.log"

    @property
    def socket(self) -> Path:
        """The engine's socket; in /run, because the path of a socket may have at most 108 characters."""
        return self.run / "docker.sock"

    @property
    def record(self) -> Path:
        """The file that identifies the daemon's process."""
        return self.run / "daemon.json"

    @property
    def borrowed(self) -> Path:
        """The file that lists the folders elsewhere that exist because of this engine."""
        return self.run / "borrowed.json"


def engine_paths(cache: Path | None = None) -> EnginePaths:
    """Return the paths for a cache folder (the usual one unless given)."""
    home = (cache or local_files.cache_folder()) / "engine"
    name = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:10]
    return EnginePaths(home=home, run=Path("/run") / f"knowngood-{name}")


def unpack_engine(paths: EnginePaths, notify: Notify) -> None:
    """Fetch and unpack the packages unless they are complete; the rest of a run that was killed is removed."""
    if paths.tools.exists():
        return
    host = debian_host.detect_host()
    if host is None:
        raise MissingError("there is no apt here to fetch the embedded engine with")
    start = time.monotonic()
    suite = ENGINE_SUITE.get(host.codename, host.codename)
    work = paths.home / "tools.part"
    shutil.rmtree(work, ignore_errors=True)
    notify(f"fetching the embedded engine: {', '.join(PACKAGES)} from {host.distribution.title()} {suite}")
    engine = private_apt.PrivateApt(work / "apt", debian_host.find_host_archives(suite))
    engine.refresh()
    engine.download([*PACKAGES, *filter(engine.offers, OPTIONAL)], work / "debs")
    host_apt = engine
    if suite != host.codename:
        host_apt = private_apt.PrivateApt(work / "own-apt", debian_host.find_host_archives())
        host_apt.refresh()
    host_apt.download([RUNTIME], work / "debs")
    for package in sorted((work / "debs").glob("*.deb")):
        private_apt.unpack_deb(package, work / "tools")
    try:
        _try_out(work / "tools")
    except KnowngoodError:  # a library is missing here
        _add_libraries(work, suite)
        _try_out(work / "tools")
    (work / "tools").rename(paths.tools)
    shutil.rmtree(work)
    notify(f"embedded engine unpacked in {time.monotonic() - start:.0f} s")


def _add_libraries(work: Path, suite: str) -> None:
    """Fetch the libraries that the packages need and the host lacks."""
    apt = private_apt.PrivateApt(work / "lib-apt", debian_host.find_host_archives(suite), installed=DPKG_STATUS)
    apt.refresh()
    names = [remote.name for remote in apt.resolve(PACKAGES) if remote.name.startswith("lib")]
    for package in apt.download(names, work / "libs"):
        private_apt.unpack_deb(package, work / "tools")


def _try_out(tools: Path) -> None:
    for program in PROGRAMS:
        private_apt.run_command([find_program(program, tools), "--version"], env=program_environment(tools))
    # It runs itself again for each container, with another environment, in which no library of the folder is found.
    bare = {name: value for name, value in program_environment(tools).items() if name != "LD_LIBRARY_PATH"}
    try:
        private_apt.run_command([find_program(RUNTIME, tools), "--version"], env=bare)
    except KnowngoodError as error:
        raise MissingError(f"{error}; {RUNTIME} needs that library in the system's own folders: install it") from None


def program_environment(tools: Path) -> dict[str, str]:
    """Return the environment variables that the programs need."""
    system = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    variables = {"PATH": ":".join([str(tools / "usr/sbin"), str(tools / "usr/bin"), *system])}
    if libraries := [str(path) for path in (*tools.glob("usr/lib/*-linux-gnu"), *tools.glob("lib/*-linux-gnu"))]:
        variables["LD_LIBRARY_PATH"] = ":".join(libraries)
    return variables


def find_program(program: str, tools: Path) -> str:
    """Return the path of an unpacked program; releases differ in which folder has it."""
    path = shutil.which(program, path=f"{tools / 'usr/sbin'}:{tools / 'usr/bin'}")
    if path is None:
        raise KnowngoodError(f"the packages of the embedded engine have no {program}: file a bug")
    return path


def configure_docker_client(paths: EnginePaths) -> None:
    """Give the docker command its buildx plugin, and a link to the user's registry logins."""
    plugins = paths.docker_config / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    _link(plugins / "docker-buildx", paths.buildx)
    logins = docker_config_path()
    if logins.exists() and logins.parent != paths.docker_config:
        _link(paths.docker_config / "config.json", logins)


def _link(name: Path, target: Path) -> None:
    if not (name.is_symlink() and name.readlink() == target):
        temporary = name.with_name(f".{name.name}.{os.getpid()}")
        temporary.symlink_to(target)
        temporary.replace(name)
