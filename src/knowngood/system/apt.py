"""Debian packages without installing any: a private apt beside the host's own.

The host's apt is read (its configuration says how to fetch, the proxy for one), never written: lists, cache and dpkg
status of the private one live in a folder of ours.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.errors import KnowngoodError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

HELPER = "/usr/lib/apt/apt-helper"

_PACKAGE_URI = re.compile(
    r"^'(?P<uri>\S+)' (?P<file>\S+_\S+_\S+)\.deb (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})\s*$",
    re.MULTILINE,
)
_RELEASE_DATE = re.compile(r"^Date: (.+)$", re.MULTILINE)
_NOT_KEPT = ("Acquire::IndexTargets", "Acquire::Languages")


@dataclass(frozen=True, kw_only=True, order=True)
class Remote:
    """A package as an archive serves it."""

    name: str
    version: str
    arch: str
    sha256: str
    uri: str


def parse_sources(stanzas: str) -> dict[str, str]:
    """Read package and source out of what `apt-cache show` wrote."""
    found: dict[str, str] = {}
    for stanza in stanzas.split("\n\n"):
        fields: dict[str, str] = dict(re.findall(r"^(Package|Source): (\S+)", stanza, re.MULTILINE))
        if "Package" in fields:
            found[fields["Package"]] = fields.get("Source") or fields["Package"]
    return found


def parse_package_uris(print_uris: str) -> tuple[Remote, ...]:
    """Read the packages out of what `apt-get --print-uris` wrote, sorted by name."""
    return tuple(sorted(_remote(match) for match in _PACKAGE_URI.finditer(print_uris)))


def _remote(match: re.Match[str]) -> Remote:
    name, version, arch = match["file"].split("_")
    return Remote(name=name, version=version.replace("%3a", ":"), arch=arch, sha256=match["sha256"], uri=match["uri"])


def configuration(root: Path, dump: str) -> str:
    """The apt.conf of a private apt under `root`; of the host's (`apt-config dump`) it keeps how to fetch."""
    fetching = [line for line in dump.splitlines() if line.startswith("Acquire::") and not line.startswith(_NOT_KEPT)]
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
        "Acquire::ForceHash": "sha256",
        "Acquire::Languages": "none",
        "Acquire::PDiffs": "false",
        "Acquire::Retries": "3",
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        # or it adds itself to whatever is asked for
        "pkgCacheGen::ForceEssential": ",",
        "pkgCacheGen::ForceImportant": ",",
    }
    return "".join(f"{line}\n" for line in [*fetching, *(f'{key} "{value}";' for key, value in own.items())])


class PrivateApt:
    """An apt with sources, lists, cache and status of its own under `root`.

    `installed` is a dpkg status file: what it lists need not be fetched (nothing unless given).
    """

    def __init__(self, root: Path, sources: Iterable[object], *, installed: Path | None = None) -> None:
        self.root = root
        self.sources = tuple(map(str, sources))
        self.installed = installed

    def refresh(self) -> None:
        """Fetch the package lists anew."""
        for folder in ("state/lists/partial", "cache/archives/partial", "log"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "status").write_bytes(self.installed.read_bytes() if self.installed else b"")
        (self.root / "sources.list").write_text("".join(f"{source}\n" for source in self.sources))
        conf = self.root / "apt.conf"
        conf.touch(mode=0o600)  # a proxy's address may carry a password
        conf.write_text(configuration(self.root, run(["apt-config", "dump"])))
        self._run(["apt-get", "--error-on=any", "update"])

    def release_date(self, suite: str) -> str:
        """When the suite was released, as its Release file says."""
        for path in self.root.glob(f"state/lists/*_dists_{suite}_*Release"):
            if match := _RELEASE_DATE.search(path.read_text(errors="replace")):
                return match[1]
        raise KnowngoodError(f"the mirror's release file of {suite} has no date")

    def offers(self, package: str) -> bool:
        """Whether the lists have `package`."""
        return package in self._run(["apt-cache", "pkgnames", package]).split()

    def source_names(self, packages: Sequence[str]) -> dict[str, str]:
        """The source package of each package, whose name is its own unless the lists say otherwise."""
        return parse_sources(self._run(["apt-cache", "show", "--", *packages]))

    def locate(self, packages: Sequence[str]) -> tuple[Remote, ...]:
        """Where the packages alone are."""
        return parse_package_uris(self._run(["apt-get", "download", "--print-uris", "--", *packages]))

    def resolve(self, packages: Sequence[str]) -> tuple[Remote, ...]:
        """The packages and all that they need."""
        return parse_package_uris(self._run(["apt-get", "install", "--yes", "--print-uris", "--", *packages]))

    def download(self, packages: Sequence[str], into: Path) -> tuple[Path, ...]:
        """Download the packages alone, hashes and signatures checked by apt."""
        into.mkdir(parents=True, exist_ok=True)
        self._run(["apt-get", "download", "--", *packages], cwd=into)
        return tuple(sorted(into.glob("*.deb")))

    def fetch(self, files: Iterable[tuple[str, Path]]) -> None:
        """Download files that the lists need not have; those that are not there are left out."""
        words = [word for uri, path in files for word in (uri, str(path), "")]
        if words:
            subprocess.run(
                [HELPER, "download-file", *words],
                check=False,
                capture_output=True,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
            )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "APT_CONFIG": str(self.root / "apt.conf"), "LC_ALL": "C"}

    def _run(self, argv: Sequence[str], *, cwd: Path | None = None) -> str:
        return run(argv, env=self._environment(), cwd=cwd)


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
        lines = done.stderr.splitlines()
        told = [line for line in lines if line.startswith("E: ")] or lines[-3:]
        raise KnowngoodError(f"`{shlex.join(argv)}` failed with status {done.returncode}: {' '.join(told)}")
    return done.stdout


def unpack(package: Path, into: Path) -> None:
    """Unpack a .deb's files under a folder."""
    into.mkdir(parents=True, exist_ok=True)
    run(["dpkg-deb", "--extract", str(package), str(into)])
