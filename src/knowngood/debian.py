"""Debian packages without installing any: the host's mirror, and a private apt beside the host's own.

The host's apt is read (its sources name a mirror that is reachable from here, its configuration the proxy),
never written: lists, cache and dpkg status of the private one live in a folder of ours.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.errors import KnowngoodError, MissingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MIRROR_VARIABLE = "KNOWNGOOD_DEBIAN_MIRROR"
KEYRINGS = {
    "debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
COMPONENTS = {"debian": ("main",), "ubuntu": ("main", "universe")}

_RELEASE_URI = re.compile(r"^'(?P<mirror>\S+?)/+dists/(?P<suite>\S+)/InRelease'", re.MULTILINE)
_PACKAGE_URI = re.compile(
    r"^'(?P<uri>\S+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})$", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Host:
    """The distribution this machine runs."""

    distribution: str
    codename: str


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A signed package archive: what one line of a sources.list says."""

    mirror: str
    suite: str
    components: tuple[str, ...]
    keyring: Path

    def __str__(self) -> str:
        return f"deb [signed-by={self.keyring}] {self.mirror} {self.suite} {' '.join(self.components)}"


@dataclass(frozen=True, kw_only=True, order=True)
class Remote:
    """A package as an archive serves it."""

    name: str
    version: str
    arch: str
    sha256: str
    uri: str


def parse_os_release(text: str) -> Host | None:
    """Read an os-release file; None unless it is of Debian, Ubuntu, or a derivative that names its Ubuntu."""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {key: "".join(shlex.split(value)) for key, value in fields.items()}
    if codename := values.get("UBUNTU_CODENAME"):
        return Host(distribution="ubuntu", codename=codename)
    if values.get("ID") in KEYRINGS and (codename := values.get("VERSION_CODENAME")):
        return Host(distribution=values["ID"], codename=codename)
    return None


def parse_release_uris(print_uris: str) -> tuple[tuple[str, str], ...]:
    """Read (mirror, suite) pairs, in order, out of `apt-get update --print-uris`."""
    pairs = ((match["mirror"], match["suite"]) for match in _RELEASE_URI.finditer(print_uris))
    return tuple(dict.fromkeys(pairs))


def parse_package_uris(print_uris: str) -> tuple[Remote, ...]:
    """Read the packages out of `apt-get install --print-uris`, sorted by name."""
    return tuple(sorted(_remote(match) for match in _PACKAGE_URI.finditer(print_uris)))


def _remote(match: re.Match[str]) -> Remote:
    name, version, arch = match["file"].removesuffix(".deb").split("_")
    return Remote(
        name=name, version=version.replace("%3a", ":"), arch=arch, sha256=match["sha256"], uri=match["uri"]
    )


def archives(
    host: Host, suite: str, pairs: Sequence[tuple[str, str]], *, mirror: str | None = None
) -> tuple[Archive, ...]:
    """The archives of `suite`, on the mirrors that serve the host's own suite, updates and security fixes."""

    def archive(where: str, name: str) -> Archive:
        return Archive(
            mirror=where,
            suite=name,
            components=COMPONENTS[host.distribution],
            keyring=KEYRINGS[host.distribution],
        )

    if mirror:
        return (archive(mirror.rstrip("/"), suite),)
    found = []
    for ending in ("", "-updates", "-security"):
        serving = [where for where, name in pairs if name == host.codename + ending]
        found += [archive(where, suite + ending) for where in serving[:1]]
    return tuple(found)


def private_configuration(root: Path, dump: str) -> str:
    """The apt.conf of a private apt under `root`; of the host's (`apt-config dump`) it keeps how to fetch."""
    fetching = [
        line
        for line in dump.splitlines()
        if line.startswith("Acquire::")
        and not line.startswith(("Acquire::IndexTargets", "Acquire::Languages"))
    ]
    own = {
        "Dir::State": root / "state",
        "Dir::State::status": root / "status",
        "Dir::Cache": root / "cache",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Dir::Log": root / "log",
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::trusted": "/dev/null",
        "Dir::Etc::trustedparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Acquire::Languages": "none",
        "Acquire::PDiffs": "false",
        "Acquire::Retries": "3",
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
    }
    return "".join(f"{line}\n" for line in [*fetching, *(f'{key} "{value}";' for key, value in own.items())])


class PrivateApt:
    """An apt with sources, lists, cache and status of its own under `root`."""

    def __init__(self, root: Path, sources: Iterable[Archive | str]) -> None:
        self.root = root
        self.sources = tuple(str(source) for source in sources)

    def refresh(self) -> None:
        """Fetch the package lists anew."""
        for folder in ("state/lists/partial", "cache/archives/partial", "log"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "status").touch()
        (self.root / "sources.list").write_text("".join(f"{source}\n" for source in self.sources))
        dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
        configuration = self.root / "apt.conf"
        configuration.touch(mode=0o600)
        configuration.write_text(private_configuration(self.root, dump))
        self._run(["apt-get", "--error-on=any", "update"])

    def offers(self, package: str) -> bool:
        """Whether the lists have `package`."""
        return bool(self._run(["apt-cache", "pkgnames", package]).split().count(package))

    def resolve(self, packages: Sequence[str]) -> tuple[Remote, ...]:
        """The packages and all that they need, on a system where nothing is installed."""
        return parse_package_uris(self._run(["apt-get", "install", "--yes", "--print-uris", "--", *packages]))

    def download(self, packages: Sequence[str], into: Path) -> tuple[Path, ...]:
        """Download the packages alone, hashes and signatures checked by apt."""
        into.mkdir(parents=True, exist_ok=True)
        self._run(["apt-get", "download", "--", *packages], cwd=into)
        return tuple(sorted(into.glob("*.deb")))

    def _run(self, argv: Sequence[str], *, cwd: Path | None = None) -> str:
        environment = {**os.environ, "APT_CONFIG": str(self.root / "apt.conf"), "LC_ALL": "C"}
        return run(argv, env=environment, cwd=cwd)


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command and return what it printed; a failure is one sentence with its last words."""
    done = subprocess.run(
        argv,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        told = [
            line for line in done.stderr.splitlines() if line.startswith("E: ")
        ] or done.stderr.splitlines()[-3:]
        raise KnowngoodError(f"`{shlex.join(argv)}` failed with status {done.returncode}: {' '.join(told)}")
    return done.stdout


def unpack(package: Path, into: Path) -> None:
    """Unpack a .deb's files under a folder."""
    into.mkdir(parents=True, exist_ok=True)
    run(["dpkg-deb", "--extract", str(package), str(into)])


def this_host() -> Host | None:
    """What /etc/os-release says of this machine, if it has apt as well."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return None
    try:
        return parse_os_release(Path("/etc/os-release").read_text())
    except OSError:
        return None


def host_archives(suite: str | None = None) -> tuple[Archive, ...]:
    """The archives of `suite` (the host's own unless given) on the mirror that the user or apt names."""
    host = this_host()
    if host is None:
        raise MissingError("this is neither Debian nor Ubuntu with apt, whose mirror could be used")
    pairs = parse_release_uris(run(["apt-get", "update", "--print-uris"]))
    mirror = os.environ.get(MIRROR_VARIABLE) if host.distribution == "debian" else None
    found = archives(host, suite or host.codename, pairs, mirror=mirror)
    if not found:
        raise MissingError(
            f"apt's sources name no mirror that serves {host.codename}: set {MIRROR_VARIABLE} to one"
        )
    return found
