"""From requirements to a full set of distributions, by `uv pip compile`: wheels, and the sources that are let in."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging import tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from knowngood import host
from knowngood.errors import KnowngoodError, MissingError


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to resolve; the answer is a function of this and of what the index had on `locked_at`."""

    requirements: tuple[str, ...]
    excludes: tuple[str, ...]
    """Distributions that must not come in, whoever requires them."""
    python: str
    glibc: str
    locked_at: str
    """Releases after this day are not seen, `2026-11-20`."""
    sources: tuple[str, ...] = ()
    """Distributions that may come as a source archive; every other one must be a wheel."""
    overrides: tuple[str, ...] = ()
    """Requirements that stand in for whatever else is asked of those distributions."""

    def document(self) -> dict[str, Any]:
        """Everything that the answer follows from; what came later than the first locks, where it is used."""
        later = {"sources", "overrides"}
        return {name: value for name, value in vars(self).items() if value or name not in later}


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """A wheel or a source archive that was chosen, and where it lies."""

    name: str
    version: str
    url: str
    sha256: str

    @property
    def file(self) -> str:
        """The file's name."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


_KEPT = ("UV_CACHE_DIR", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS")


class NoSolutionError(KnowngoodError):
    """The requirements admit no set of wheels; the text is the resolver's explanation."""


def command(request: Request, folder: Path, wheels: Path | None) -> list[str]:
    """The argv of the resolver, reading `folder/in.txt` and writing `folder/pylock.toml`."""
    from uv import find_uv_bin

    argv = [find_uv_bin(), "pip", "compile", "--quiet", *config()]
    argv += ["--generate-hashes", "--format", "pylock.toml", "--output-file", str(folder / "pylock.toml")]
    argv += ["--python-version", request.python]
    argv += ["--python-platform", platform(request.glibc)]
    argv += ["--only-binary", ":all:", "--exclude-newer", request.locked_at, "--no-header"]
    argv += [word for name in request.sources for word in ("--no-binary", name)]
    if request.excludes:
        argv += ["--excludes", str(folder / "excludes.txt")]
    if request.overrides:
        argv += ["--overrides", str(folder / "overrides.txt")]
    if wheels:
        argv += ["--find-links", str(wheels)]
    return [*argv, str(folder / "in.txt")]


def config() -> list[str]:
    """Options that name the configuration file of uv that the host has, or none."""
    file = host.settings().files.get("uv-config")
    return ["--config-file", str(file)] if file else ["--no-config"]


def platform(glibc: str) -> str:
    """A Linux on x86-64 of that glibc, as uv names it."""
    return f"x86_64-manylinux_{glibc.replace('.', '_')}"


def environment() -> dict[str, str]:
    """What uv runs in: of its settings those that say how to reach an index; none that would change what is chosen."""
    settings = host.settings()
    env = {key: value for key, value in os.environ.items() if not key.startswith("UV_") or key in _KEPT}
    env |= settings.env
    if "ca" in settings.files:
        env["SSL_CERT_FILE"] = str(settings.files["ca"])
    return env


def resolve(request: Request, wheels: Path | None = None) -> list[Pinned]:
    """Every wheel that `request` needs; `wheels` is a folder with more of them.

    Raises `NoSolutionError` when there is none, `MissingError` when the index does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="knowngood-") as name:
        folder = Path(name)
        (folder / "in.txt").write_text("\n".join(request.requirements) + "\n")
        (folder / "excludes.txt").write_text("\n".join(request.excludes) + "\n")
        (folder / "overrides.txt").write_text("\n".join(request.overrides) + "\n")
        argv = command(request, folder, wheels)
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise failure(done.stderr, request.requirements)
        return parse(tomllib.loads((folder / "pylock.toml").read_text()), request)


_UNREACHABLE = re.compile(
    r"(?i)request failed|failed to fetch|error sending request|dns error|connection (refused|reset)|timed out"
    r"|network (was|is) (disabled|unreachable)|invalid peer certificate|http status server error"
)
_REFUSED = re.compile(r"(?i)401 unauthorized|403 forbidden|lack of valid authentication credentials")


def failure(said: str, requirements: Sequence[str]) -> KnowngoodError:
    """The exception for a resolver that failed with this on stderr. Pure."""
    causes = re.split(r"(?:^|\s)(?:error|cause|Caused by): ", re.sub(r"[^\x00-\x7f]", "", said))
    reason = "; ".join(" ".join(cause.split()) for cause in causes if cause.strip())
    if _REFUSED.search(said):
        return MissingError(f"the index refuses the resolver: {reason}; check the credentials in the index settings")
    if _UNREACHABLE.search(said):
        return MissingError(
            f"the index did not answer the resolver: {reason}; check network and index settings, run it again"
        )
    if re.search(r"(?i)no space left on device", said):
        return MissingError(f"the disk is full: {reason}; free some space and run it again")
    if "No solution found" in said:
        return NoSolutionError(f"nothing satisfies {', '.join(requirements)}: {reason}")
    return KnowngoodError(f"the resolver failed: {reason}")


def parse(lock: dict[str, Any], request: Request) -> list[Pinned]:
    """The wheels of a pylock (PEP 751), of each distribution the one that an installer would prefer. Pure."""
    order = {tag: rank for rank, tag in enumerate(supported_tags(request.python, request.glibc))}
    pinned = []
    for package in lock.get("packages", []):
        candidates = []
        for wheel in package.get("wheels", []):
            url = wheel.get("url") or Path(wheel["path"]).resolve().as_uri()
            sha256 = wheel.get("hashes", {}).get("sha256")
            item = Pinned(name=package["name"], version=package.get("version", ""), url=url, sha256=sha256 or "")
            ranks = [order[tag] for tag in _tags(item.file) if tag in order]
            if ranks and sha256:
                candidates.append((min(ranks), item))
        if not candidates and package["name"] in request.sources:
            pinned.append(_source(package))
            continue
        if not candidates:
            raise KnowngoodError(
                f"{package['name']} {package.get('version', '')} has no wheel with a sha256 for Python "
                f"{request.python} and glibc {request.glibc}"
            )
        pinned.append(min(candidates, key=lambda pair: pair[0])[1])
    return pinned


def _source(package: dict[str, Any]) -> Pinned:
    archive = package["sdist"]
    return Pinned(
        name=package["name"],
        version=package["version"],
        url=archive["url"],
        sha256=archive["hashes"]["sha256"],
    )


def _tags(file: str) -> frozenset[tags.Tag]:
    try:
        return parse_wheel_filename(file)[3]
    except InvalidWheelFilename:
        return frozenset()


def supported_tags(python: str, glibc: str) -> list[tags.Tag]:
    """Wheel tags that a CPython on x86-64 Linux of that glibc takes, best first (PEP 425, PEP 600)."""
    aliases = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms = []
    for minor in range(int(glibc.split(".")[1]), 4, -1):
        platforms.append(f"manylinux_2_{minor}_x86_64")
        if minor in aliases:
            platforms.append(f"{aliases[minor]}_x86_64")
    platforms.append("linux_x86_64")
    version = tuple(map(int, python.split(".")))
    interpreter = "cp" + "".join(map(str, version))
    return [
        *tags.cpython_tags(version, platforms=platforms),
        *tags.compatible_tags(version, interpreter, platforms),
    ]
