"""Which Debian or Ubuntu this host is, and the mirrors that its apt already uses.

No mirror is named in this program: the host's sources say which one can be reached from here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.errors import MissingError
from knowngood.system.apt import PrivateApt, run, unpack

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


def parse_os_release(text: str) -> Host | None:
    """Read an os-release file; None unless it is of Debian, Ubuntu, or a derivative that names its Ubuntu."""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {key: "".join(shlex.split(value)) for key, value in fields.items()}
    if codename := values.get("UBUNTU_CODENAME"):
        return Host(distribution="ubuntu", codename=codename)
    if values.get("ID") in KEYRING and (codename := values.get("VERSION_CODENAME")):
        return Host(distribution=values["ID"], codename=codename)
    return None


def parse_release_uris(print_uris: str) -> tuple[tuple[str, str], ...]:
    """Read (mirror, suite) pairs, in order, out of `apt-get update --print-uris`."""
    pairs = ((match["mirror"], match["suite"]) for match in _RELEASE_URI.finditer(print_uris))
    return tuple(dict.fromkeys(pairs))


def parse_default_mirror(mmdebstrap: str) -> str | None:
    """The mirror that mmdebstrap, a Perl program, uses for Debian unless told otherwise."""
    match = _DEFAULT_MIRROR.search(mmdebstrap)
    return match["mirror"] if match else None


def archives(host: Host, suite: str, pairs: Sequence[tuple[str, str]]) -> tuple[Archive, ...]:
    """The archives of `suite`, on the mirrors that serve the host's own suite, updates and security fixes."""
    found = []
    for kind in KINDS:
        serving = [mirror for mirror, name in pairs if name == host.codename + kind]
        found += [_archive(host.distribution, mirror, suite + kind) for mirror in serving[:1]]
    return tuple(found)


def _archive(distribution: str, mirror: str, suite: str, keyring: Path | None = None) -> Archive:
    return Archive(
        mirror=mirror.rstrip("/"),
        suite=suite,
        components=COMPONENTS[distribution],
        keyring=keyring or KEYRING[distribution],
    )


def this_host() -> Host | None:
    """What /etc/os-release says of this machine, if it has apt as well."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return None
    try:
        return parse_os_release(Path("/etc/os-release").read_text())
    except OSError:
        return None


def host_archives(suite: str | None = None) -> tuple[Archive, ...]:
    """The archives of a suite of the host's distribution (its own unless given)."""
    host = this_host()
    if host is None:
        raise MissingError("packages come from a Debian or Ubuntu mirror, and this machine has no apt")
    suite = suite or host.codename
    if host.distribution == "debian" and (mirror := os.environ.get(MIRROR_VARIABLE)):
        return (_archive("debian", mirror, suite),)
    found = archives(host, suite, parse_release_uris(run(["apt-get", "update", "--print-uris"])))
    if not found:
        raise MissingError(
            f"apt's sources name no mirror that serves {host.codename}: add one, or set {MIRROR_VARIABLE}"
        )
    return found


def debian_archives(suite: str, work: Path) -> tuple[Archive, ...]:
    """The archives of a Debian suite, whether the host is Debian or not.

    Ubuntu packages Debian's keys, and mmdebstrap with its default mirror; `work` is where they are unpacked.
    """
    host = this_host()
    if host is None or host.distribution == "debian":
        return host_archives(suite)
    apt = PrivateApt(work / "host-apt", host_archives())
    apt.refresh()
    for package in apt.download(["debian-archive-keyring", "mmdebstrap"], work / "debs"):
        unpack(package, work / "unpacked")
    script = (work / "unpacked/usr/bin/mmdebstrap").read_text()
    mirror = os.environ.get(MIRROR_VARIABLE) or parse_default_mirror(script)
    if mirror is None:
        raise MissingError(f"no Debian mirror is known here: set {MIRROR_VARIABLE} to one")
    keyring = work / "unpacked" / KEYRING["debian"].relative_to("/")
    return (_archive("debian", mirror, suite, keyring),)
