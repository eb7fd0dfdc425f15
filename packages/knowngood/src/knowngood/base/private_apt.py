"""A private apt beside the host's own, which fetches Debian packages without installing them.

The configuration of the host's apt is read, because it says how to fetch (through which proxy, for example). It is
never written: lists, cache and dpkg status of the private apt are in a separate folder. Passwords, of a proxy or a
mirror, are in files that exist only while apt runs, and in no command line.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from knowngood.core import local_files
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, failure_from_output
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HELPER = "/usr/lib/apt/apt-helper"

_PACKAGE_URI = re.compile(
    r"^'(?P<uri>\S+)' (?P<file>\S+_\S+_\S+)\.deb (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})\s*$",
    re.MULTILINE,
)
_RELEASE_DATE = re.compile(r"^Date: (.+)$", re.MULTILINE)
_LOGIN = re.compile(r"(?P<scheme>https?://)(?P<login>[^/\s@]+)@(?P<host>[^/\s]+)")
_HOST_LOGINS = Path("/etc/apt/auth.conf")
_NOT_KEPT = ("Acquire::IndexTargets", "Acquire::Languages")


@dataclass(frozen=True, kw_only=True, order=True)
class RemotePackage:
    """A package as an archive serves it."""

    name: str
    version: str
    arch: str
    sha256: str
    uri: str


def parse_sources(stanzas: str) -> dict[str, str]:
    """Parse the output of `apt-cache show`; return the source package of each package."""
    sources: dict[str, str] = {}
    for stanza in stanzas.split("\n\n"):
        fields: dict[str, str] = dict(re.findall(r"^(Package|Source): (\S+)", stanza, re.MULTILINE))
        if "Package" in fields:
            sources[fields["Package"]] = fields.get("Source") or fields["Package"]
    return sources


def parse_package_uris(print_uris: str) -> tuple[RemotePackage, ...]:
    """Parse the output of `apt-get --print-uris`; return the packages sorted by name."""
    return tuple(sorted(_package_from_match(match) for match in _PACKAGE_URI.finditer(print_uris)))


def _package_from_match(match: re.Match[str]) -> RemotePackage:
    name, version, arch = match["file"].split("_")
    return RemotePackage(
        name=name, version=version.replace("%3a", ":"), arch=arch, sha256=match["sha256"], uri=match["uri"]
    )


def split_mirror_logins(sources: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the lines of a sources.list without user and password, and the lines of an auth.conf with them."""
    logins = []

    def move_login(match: re.Match[str]) -> str:
        user, _, password = match["login"].partition(":")
        machine = match["scheme"] + match["host"]
        logins.append(f"machine {machine} login {unquote(user)} password {unquote(password)}")
        return machine

    stripped = [_LOGIN.sub(move_login, source) for source in sources]
    return stripped, list(dict.fromkeys(logins))


def apt_configuration(root: Path, dump: str, private: Path, host: HostArchitecture = DEFAULT_HOST) -> str:
    """Return the apt.conf of a private apt under `root` with the fetch settings of the host's `apt-config dump`.

    The folder `private` holds its sources.list and its auth.conf. The packages are for `host`.
    """
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
        "Dir::Etc::sourcelist": private / "sources.list",
        "Dir::Etc::netrc": private / "auth.conf",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::trusted": "/dev/null",
        "Dir::Etc::trustedparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Acquire::ForceHash": "sha256",
        "Acquire::Languages": "none",
        "Acquire::PDiffs": "false",
        "Acquire::Retries": "3",
        "APT::Architecture": host.debian,
        "APT::Architectures": host.debian,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        # or apt adds itself to every request
        "pkgCacheGen::ForceEssential": ",",
        "pkgCacheGen::ForceImportant": ",",
    }
    return "".join(f"{line}\n" for line in [*fetching, *(f'{key} "{value}";' for key, value in own.items())])


class PrivateApt:
    """An apt with its own sources, lists, cache and status under `root`.

    `installed` is a dpkg status file with the packages that need not be fetched (none unless given). The packages are
    those for `host`.
    """

    def __init__(
        self,
        root: Path,
        sources: Iterable[object],
        *,
        installed: Path | None = None,
        host: HostArchitecture = DEFAULT_HOST,
    ) -> None:
        self.root = root
        self.host = host
        self.sources = tuple(map(str, sources))
        self.installed = installed
        self._host_settings = ""

    def refresh(self) -> None:
        """Fetch the current package lists."""
        for folder in ("state/lists/partial", "cache/archives/partial", "log"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "status").write_bytes(self.installed.read_bytes() if self.installed else b"")
        self._host_settings = run_command(["apt-config", "dump"])
        self._run(["apt-get", "--error-on=any", "update"])

    def release_date(self, suite: str) -> str:
        """Return the date in the suite's Release file."""
        for path in self.root.glob(f"state/lists/*_dists_{suite}_*Release"):
            if match := _RELEASE_DATE.search(path.read_text(errors="replace")):
                return match[1]
        raise KnowngoodError(f"the mirror's release file of {suite} has no date")

    def offers(self, package: str) -> bool:
        """Whether the lists contain `package`."""
        return package in self._run(["apt-cache", "pkgnames", package]).split()

    def source_names(self, packages: Sequence[str]) -> dict[str, str]:
        """Return the source package of each package; it has the same name unless the lists say otherwise."""
        return parse_sources(self._run(["apt-cache", "show", "--", *packages]))

    def locate(self, packages: Sequence[str]) -> tuple[RemotePackage, ...]:
        """Return the addresses of the packages, without what they need."""
        return parse_package_uris(self._run(["apt-get", "download", "--print-uris", "--", *packages]))

    def resolve(self, packages: Sequence[str]) -> tuple[RemotePackage, ...]:
        """Return the packages and all packages that they need."""
        return parse_package_uris(self._run(["apt-get", "install", "--yes", "--print-uris", "--", *packages]))

    def download(self, packages: Sequence[str], into: Path) -> tuple[Path, ...]:
        """Download the packages, without what they need; apt checks hashes and signatures."""
        into.mkdir(parents=True, exist_ok=True)
        self._run(["apt-get", "download", "--", *packages], cwd=into)
        return tuple(sorted(into.glob("*.deb")))

    def fetch(self, files: Iterable[tuple[str, Path]]) -> None:
        """Download files, pairs of address and path, that need not be in the lists; missing ones are left out."""
        arguments = [argument for uri, path in files for argument in (uri, str(path), "")]
        if arguments:
            with self._environment() as env:
                subprocess.run(
                    [HELPER, "download-file", *arguments],
                    check=False,
                    capture_output=True,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    preexec_fn=end_with_parent(),
                )

    @contextlib.contextmanager
    def _environment(self) -> Iterator[dict[str, str]]:
        """Give the environment for apt; its configuration is in a folder that is removed afterwards."""
        sources, logins = split_mirror_logins(self.sources)
        with contextlib.suppress(OSError):
            logins.append(_HOST_LOGINS.read_text(encoding="utf-8"))
        with local_files.scratch_folder() as private:
            (private / "sources.list").write_text("".join(f"{source}\n" for source in sources))
            (private / "auth.conf").write_text("".join(f"{login}\n" for login in logins))
            (private / "apt.conf").write_text(apt_configuration(self.root, self._host_settings, private, self.host))
            yield {**os.environ, "APT_CONFIG": str(private / "apt.conf")}

    def _run(self, argv: Sequence[str], *, cwd: Path | None = None) -> str:
        with self._environment() as env:
            return run_command(argv, env=env, cwd=cwd)


def run_command(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command and return its output; raises `KnowngoodError` with its last lines when it fails."""
    result = subprocess.run(
        argv,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env={**(os.environ if env is None else env), "LC_ALL": "C"},  # its errors are read below
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        preexec_fn=end_with_parent(),
    )
    if result.returncode:
        lines = result.stderr.splitlines()
        errors = [line for line in lines if line.startswith("E: ")] or lines[-3:]
        message = f"`{shlex.join(argv)}` failed with status {result.returncode}: {' '.join(errors)}"
        raise failure_from_output(message, result.stderr)
    return result.stdout


def unpack_deb(package: Path, into: Path) -> None:
    """Unpack the files of a .deb into a folder."""
    into.mkdir(parents=True, exist_ok=True)
    run_command(["dpkg-deb", "--extract", str(package), str(into)])
