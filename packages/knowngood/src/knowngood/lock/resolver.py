"""Resolve requirements to a full set of distributions with `uv pip compile`: wheels, and allowed sources."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging import tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from knowngood.core import local_files
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError, failure_from_output
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.index import index_settings
from knowngood.index.index_settings import CORRUPT_PATTERN, parse_corrupt_archive


@dataclass(frozen=True, kw_only=True)
class ResolverRequest:
    """What to resolve. The answer depends on this and on what the index had on `locked_at`, and on nothing else."""

    requirements: tuple[str, ...]
    excludes: tuple[str, ...]
    """Distributions that must not be installed, whatever requires them."""
    python: str
    glibc: str
    locked_at: str
    """Releases after this day are ignored, as in `2026-11-20`."""
    sources: tuple[str, ...] = ()
    """Distributions that may come as a source archive; every other one must be a wheel."""
    overrides: tuple[str, ...] = ()
    """Requirements that replace all others on the same distributions."""
    constraints: tuple[str, ...] = ()
    """Requirements that hold for distributions that something else requires."""
    host: str = ""
    """The hosts whose wheels are wanted, `aarch64`; empty for x86-64."""

    @property
    def architecture(self) -> HostArchitecture:
        """The hosts whose wheels are wanted."""
        return HostArchitecture(self.host or DEFAULT_HOST)

    def document(self) -> dict[str, Any]:
        """Return everything that decides the answer.

        It is hashed into every lock, so fields that came after the first locks count only when they are set.
        """
        later = {"sources", "overrides", "constraints", "host"}
        return {name: value for name, value in vars(self).items() if value or name not in later}


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """A wheel or a source archive that the resolver chose, and its address."""

    name: str
    version: str
    url: str
    sha256: str
    uploaded: str = ""
    """The day of its upload, ISO 8601; empty where the index does not say it."""

    @property
    def file(self) -> str:
        """Return the name of the file."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


NEWEST_UV_GLIBC = 40
"""The minor version of the newest glibc that `uv pip compile --python-platform` has a name for (uv 0.13)."""

_KEPT_UV_VARIABLES = ("UV_CACHE_DIR", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS")


class NoSolutionError(KnowngoodError):
    """No set of wheels satisfies the requirements; the text is the resolver's explanation."""


def resolver_command(request: ResolverRequest, folder: Path, wheels: Path | None) -> list[str]:
    """Return the resolver's command, which reads `folder/in.txt` and writes `folder/pylock.toml`."""
    from uv import find_uv_bin

    argv = [find_uv_bin(), "pip", "compile", "--quiet", *uv_config_options()]
    argv += ["--generate-hashes", "--format", "pylock.toml", "--output-file", str(folder / "pylock.toml")]
    argv += ["--python-version", request.python]
    argv += ["--python-platform", uv_platform(request.glibc, request.architecture)]
    argv += ["--only-binary", ":all:", "--exclude-newer", f"{request.locked_at}T23:59:59Z", "--no-header"]
    argv += [word for name in request.sources for word in ("--no-binary", name)]
    if request.excludes:
        argv += ["--excludes", str(folder / "excludes.txt")]
    if request.overrides:
        argv += ["--overrides", str(folder / "overrides.txt")]
    if request.constraints:
        argv += ["--constraints", str(folder / "constraints.txt")]
    if wheels:
        argv += ["--find-links", str(wheels)]
    return [*argv, str(folder / "in.txt")]


def uv_config_options() -> list[str]:
    """Return uv's option that names this host's configuration file, or the one that turns such files off."""
    file = index_settings.read_index_settings().files.get("uv-config")
    return ["--config-file", str(file)] if file else ["--no-config"]


def uv_platform(glibc: str, host: HostArchitecture) -> str:
    """Return uv's name for Linux on a host with this glibc: `aarch64-manylinux_2_36`, or of the newest it knows."""
    minor = min(int(glibc.split(".")[1]), NEWEST_UV_GLIBC)
    return f"{host.machine}-manylinux_2_{minor}"


def uv_environment() -> dict[str, str]:
    """Return the environment for uv: its settings on how to reach an index, and none that change what it chooses."""
    settings = index_settings.read_index_settings()
    env = {key: value for key, value in os.environ.items() if not key.startswith("UV_") or key in _KEPT_UV_VARIABLES}
    env |= settings.env
    if "ca" in settings.files:
        env["SSL_CERT_FILE"] = str(settings.files["ca"])
    return env


def resolve_distributions(request: ResolverRequest, wheels: Path | None = None) -> list[PinnedFile]:
    """Return every distribution that `request` needs; `wheels` is a folder with wheels that no index has.

    Raises:
        NoSolutionError: no set of wheels satisfies the requirements.
        MissingError: the index did not answer or refused, or the disk is full.
    """
    with local_files.scratch_folder() as folder:
        (folder / "in.txt").write_text("\n".join(request.requirements) + "\n")
        (folder / "excludes.txt").write_text("\n".join(request.excludes) + "\n")
        (folder / "overrides.txt").write_text("\n".join(request.overrides) + "\n")
        (folder / "constraints.txt").write_text("\n".join(request.constraints) + "\n")
        argv = resolver_command(request, folder, wheels)
        process = subprocess.run(
            argv, env=uv_environment(), capture_output=True, text=True, check=False, preexec_fn=end_with_parent()
        )
        if process.returncode:
            raise resolver_error(process.stderr, request.requirements)
        return parse_pylock(tomllib.loads((folder / "pylock.toml").read_text()), request)


_UNREACHABLE = re.compile(
    r"(?i)request failed|failed to fetch|error sending request|dns error|connection (refused|reset)|timed out"
    r"|network (was|is) (disabled|unreachable)|invalid peer certificate|http status server error"
)
_REFUSED = re.compile(r"(?i)401 unauthorized|403 forbidden|lack of valid authentication credentials")


def resolver_error(stderr: str, requirements: Sequence[str]) -> KnowngoodError:
    """Return the exception for a resolver that failed with this on stderr. Pure."""
    causes = re.split(r"(?:^|\s)(?:error|cause|Caused by): ", re.sub(r"[^\x00-\x7f]", "", stderr))
    reason = "; ".join(" ".join(cause.split()) for cause in causes if cause.strip())
    if _REFUSED.search(stderr):
        return MissingError(f"the index refuses the resolver: {reason}; check the credentials in the index settings")
    if re.search(CORRUPT_PATTERN, stderr):
        return parse_corrupt_archive(stderr, "the index or a proxy before it serves a damaged file: have it put right")
    if _UNREACHABLE.search(stderr):
        return MissingError(
            f"the index did not answer the resolver: {reason}; check the network and index settings, and run it again"
        )
    if "No solution found" in stderr:
        return NoSolutionError(f"nothing satisfies {', '.join(requirements)}: {reason}")
    return failure_from_output(f"the resolver failed: {reason}", stderr)


def parse_pylock(lock: dict[str, Any], request: ResolverRequest) -> list[PinnedFile]:
    """Return the files of a pylock (PEP 751): for each distribution the wheel that an installer would prefer. Pure."""
    order = {tag: rank for rank, tag in enumerate(supported_tags(request.python, request.glibc, request.architecture))}
    pinned = []
    for package in lock.get("packages", []):
        candidates = []
        for wheel in package.get("wheels", []):
            url = wheel.get("url") or Path(wheel["path"]).resolve().as_uri()
            sha256 = wheel.get("hashes", {}).get("sha256")
            item = PinnedFile(
                name=package["name"],
                version=package.get("version", ""),
                url=url,
                sha256=sha256 or "",
                uploaded=str(wheel.get("upload-time", ""))[:10],
            )
            ranks = [order[tag] for tag in _wheel_tags(item.file) if tag in order]
            if ranks and sha256:
                candidates.append((min(ranks), item))
        if not candidates and package["name"] in request.sources:
            pinned.append(_pinned_source(package))
            continue
        if not candidates:
            raise KnowngoodError(
                f"{package['name']} {package.get('version', '')} has no wheel with a sha256 for Python "
                f"{request.python} and glibc {request.glibc} on {request.architecture}"
            )
        pinned.append(min(candidates, key=lambda pair: pair[0])[1])
    return pinned


def _pinned_source(package: dict[str, Any]) -> PinnedFile:
    archive = package["sdist"]
    return PinnedFile(
        name=package["name"],
        version=package["version"],
        url=archive["url"],
        sha256=archive["hashes"]["sha256"],
    )


def _wheel_tags(file: str) -> frozenset[tags.Tag]:
    try:
        return parse_wheel_filename(file)[3]
    except InvalidWheelFilename:
        return frozenset()


def supported_tags(python: str, glibc: str, host: HostArchitecture = DEFAULT_HOST) -> list[tags.Tag]:
    """Return the wheel tags that CPython accepts on a Linux host with this glibc, best first (PEP 425, PEP 600)."""
    aliases = {17: "manylinux2014"}
    if host is HostArchitecture.X86_64:
        aliases |= {12: "manylinux2010", 5: "manylinux1"}
    platforms = []
    for minor in range(int(glibc.split(".")[1]), 4, -1):
        platforms.append(f"manylinux_2_{minor}_{host.machine}")
        if minor in aliases:
            platforms.append(f"{aliases[minor]}_{host.machine}")
    platforms.append(f"linux_{host.machine}")
    version = tuple(map(int, python.split(".")))
    interpreter = "cp" + "".join(map(str, version))
    return [
        *tags.cpython_tags(version, platforms=platforms),
        *tags.compatible_tags(version, interpreter, platforms),
    ]
