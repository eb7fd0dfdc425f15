"""The Debian or Ubuntu release of this host, and the mirrors that its apt already uses.

This program names no mirror: the sources of the host's apt say which ones can be reached from here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.base.private_apt import PrivateApt, run_command, unpack_deb
from knowngood.core.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Sequence

MIRROR_VARIABLE = "KNOWNGOOD_DEBIAN_MIRROR"
KEYRING = {
    "debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
COMPONENTS = {"debian": ("main",), "ubuntu": ("main", "universe")}
KINDS = ("", "-updates", "-security")

_RELEASE_URI = re.compile(r"^'(?P<mirror>\S+?)/+dists/(?P<suite>\S+)/InRelease'", re.MULTILINE)
_DEFAULT_MIRROR = re.compile(r"""^\s*my \$mirror\s*=\s*'(?P<mirror>\S+/debian)';""", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class DebianHost:
    """The distribution that this machine runs."""

    distribution: str
    codename: str


@dataclass(frozen=True, kw_only=True)
class PackageArchive:
    """A signed package archive, as one line of a sources.list describes it."""

    mirror: str
    suite: str
    components: tuple[str, ...]
    keyring: Path

    def __str__(self) -> str:
        return f"deb [signed-by={self.keyring}] {self.mirror} {self.suite} {' '.join(self.components)}"


def parse_os_release(text: str) -> DebianHost | None:
    """Parse an os-release file; None unless it is of Debian, Ubuntu, or a derivative that names its Ubuntu."""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {key: "".join(shlex.split(value)) for key, value in fields.items()}
    if codename := values.get("UBUNTU_CODENAME"):
        return DebianHost(distribution="ubuntu", codename=codename)
    if values.get("ID") in KEYRING and (codename := values.get("VERSION_CODENAME")):
        return DebianHost(distribution=values["ID"], codename=codename)
    return None


def parse_release_uris(print_uris: str) -> tuple[tuple[str, str], ...]:
    """Parse the output of `apt-get update --print-uris`; return pairs of mirror and suite in order."""
    pairs = ((match["mirror"], match["suite"]) for match in _RELEASE_URI.finditer(print_uris))
    return tuple(dict.fromkeys(pairs))


def parse_default_mirror(mmdebstrap: str) -> str | None:
    """Return the default mirror for Debian in the text of mmdebstrap, a Perl program."""
    match = _DEFAULT_MIRROR.search(mmdebstrap)
    return match["mirror"] if match else None


def archives_of_suite(host: DebianHost, suite: str, pairs: Sequence[tuple[str, str]]) -> tuple[PackageArchive, ...]:
    """Return the archives of `suite` on the mirrors that serve the host's suite, updates and security fixes. Pure."""
    archives = []
    for kind in KINDS:
        mirrors = [mirror for mirror, name in pairs if name == host.codename + kind]
        archives += [_archive(host.distribution, mirror, suite + kind) for mirror in mirrors[:1]]
    return tuple(archives)


def _archive(distribution: str, mirror: str, suite: str, keyring: Path | None = None) -> PackageArchive:
    return PackageArchive(
        mirror=mirror.rstrip("/"),
        suite=suite,
        components=COMPONENTS[distribution],
        keyring=keyring or KEYRING[distribution],
    )


def detect_host() -> DebianHost | None:
    """Return the distribution of this machine, None if it is another one or has no apt."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return None
    try:
        return parse_os_release(Path("/etc/os-release").read_text())
    except OSError:
        return None


def find_host_archives(suite: str | None = None) -> tuple[PackageArchive, ...]:
    """Return the archives of a suite of the host's distribution (the host's own suite unless given)."""
    host = detect_host()
    if host is None:
        raise MissingError("packages come from a Debian or Ubuntu mirror, and this machine has no apt")
    suite = suite or host.codename
    if host.distribution == "debian" and (mirror := os.environ.get(MIRROR_VARIABLE)):
        return (_archive("debian", mirror, suite),)
    archives = archives_of_suite(host, suite, parse_release_uris(run_command(["apt-get", "update", "--print-uris"])))
    if not archives:
        raise MissingError(
            f"apt's sources name no mirror that serves {host.codename}: add one, or set {MIRROR_VARIABLE}"
        )
    return archives


def find_debian_archives(suite: str, work: Path) -> tuple[PackageArchive, ...]:
    """Return the archives of a Debian suite, also on an Ubuntu host.

    Ubuntu has packages with Debian's keys, and with mmdebstrap, which names a default mirror; they are unpacked in
    `work`.
    """
    host = detect_host()
    if host is None or host.distribution == "debian":
        return find_host_archives(suite)
    apt = PrivateApt(work / "host-apt", find_host_archives())
    apt.refresh()
    for package in apt.download(["debian-archive-keyring", "mmdebstrap"], work / "debs"):
        unpack_deb(package, work / "unpacked")
    script = (work / "unpacked/usr/bin/mmdebstrap").read_text()
    mirror = os.environ.get(MIRROR_VARIABLE) or parse_default_mirror(script)
    if mirror is None:
        raise MissingError(f"no Debian mirror is known on this host: set {MIRROR_VARIABLE} to one")
    keyring = work / "unpacked" / KEYRING["debian"].relative_to("/")
    return (_archive("debian", mirror, suite, keyring),)
