"""Base images: bootstrapped from pinned Debian packages into an OCI layout, or pulled by digest."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path

from knowngood import paths
from knowngood.errors import KnowngoodError, MissingError, UsageError
from knowngood.system import apt, base_recipe, bootstrap, debian, oci
from knowngood.system.packages_lock import Package, PackagesLock

__all__ = ["BaseImage", "DebianBase", "Package", "PackagesLock", "build", "context", "refresh"]

_IMAGE = re.compile(r"(?P<name>[a-z0-9][a-z0-9._/:-]*)@(?P<digest>sha256:[0-9a-f]{64})")

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DebianBase:
    """A base made of Debian packages.

    Without `security` the packages come from the release proper, which moves a few times a year and whose older
    versions stay on the mirrors for long; with it they follow the security archive, which moves weekly and
    removes what it replaced.
    """

    name: str
    suite: str = "bookworm"
    packages: tuple[str, ...] = base_recipe.PACKAGES
    python: str = "3.11"
    security: bool = False
    refresh_command: str = "knowngood base --refresh"

    @property
    def requested(self) -> tuple[str, ...]:
        """What the lock must have been made for."""
        return (*self.packages, *(("+security",) if self.security else ()))


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """A base image in an OCI layout, and the lock that makes it again."""

    layout: Path
    digest: str
    lock: PackagesLock

    @property
    def packages(self) -> tuple[Package, ...]:
        """The Debian packages in it."""
        return self.lock.packages

    @property
    def context(self) -> str:
        """The value of a build context, for `--build-context base=...`."""
        return f"oci-layout://{self.layout}@{self.digest}"


def context(image: str) -> str:
    """The build context of an image that is pulled; it must be named by digest."""
    if not _IMAGE.fullmatch(image):
        raise UsageError(f"base image {image!r} has no digest: write it as name@sha256:<64 hex digits>")
    return f"docker-image://{image}"


def build(base: DebianBase, lock: PackagesLock | None, *, locked: bool, say: Say, out: Path | None = None) -> BaseImage:
    """The base image that the lock pins, bootstrapped unless it is in `out` (the cache) already.

    Where there is no lock, or it cannot be followed any more, `locked` refuses; otherwise a new lock is made, which
    the caller must write.
    """
    folder = out or paths.cache_dir() / "bases"
    stale = _stale(base, lock)
    if lock and not stale:
        if found := _cached(folder, lock):
            return _checked(base, lock, found, locked, say)
        with paths.locked(folder):
            files = _fetch(base, lock, folder)
            gone = [package for package in (*lock.tools, *lock.packages) if package not in files]
            if not gone:
                return _checked(base, lock, _cached(folder, lock) or _make(lock, files, folder, say), locked, say)
            stale = f"{_listed(gone)} can no longer be had from the mirror"
    if locked:
        raise KnowngoodError(f"base {base.name}: {stale}; run `{base.refresh_command}` and commit the new lock")
    if lock:
        say(f"base {base.name}: WARNING: {stale}: making a new lock, the digest of the base will change")
    return refresh(base, say=say, out=out)


def refresh(base: DebianBase, *, say: Say, out: Path | None = None) -> BaseImage:
    """The base image of the packages that the mirror serves now, with a new lock."""
    folder = out or paths.cache_dir() / "bases"
    with paths.locked(folder):
        mirror = _mirror(base, folder)
        lock = PackagesLock(
            suite=base.suite,
            epoch=int(parsedate_to_datetime(mirror.release_date(base.suite)).timestamp()),
            requested=base.requested,
            tools=_packages(_tools(base, folder, mirror)),
            packages=_packages(_needed(base, mirror)),
            made_by=base.refresh_command,
        )
        if f"python{base.python}" not in {package.name for package in lock.packages}:
            raise UsageError(f"base {base.name} is said to have Python {base.python}, which {base.suite} has not")
        if found := _cached(folder, lock):
            return found
        files = _fetch(base, lock, folder, mirror)
        if gone := [package for package in (*lock.tools, *lock.packages) if package not in files]:
            raise MissingError(f"the mirror lists {_listed(gone)} but does not serve it: try again")
        return _make(lock, files, folder, say)


def _stale(base: DebianBase, lock: PackagesLock | None) -> str | None:
    """Why the lock is not for this base, as the end of a sentence."""
    if lock is None:
        return "there is no packages.lock"
    if (lock.suite, lock.requested) != (base.suite, base.requested):
        return (
            f"its packages.lock is for {lock.suite} with {' '.join(lock.requested)}, "
            f"asked for is {base.suite} with {' '.join(base.requested)}"
        )
    return None


def _checked(base: DebianBase, lock: PackagesLock, image: BaseImage, locked: bool, say: Say) -> BaseImage:
    """The image, if it is the one that the lock says comes out."""
    if lock.digest in (None, image.digest):
        return image
    told = (
        f"base {base.name}: the locked packages came out as {image.digest}, the lock says {lock.digest}: "
        f"how a base is made has changed; run `{base.refresh_command}` and commit the new lock"
    )
    if locked:
        raise KnowngoodError(told)
    say(f"WARNING: {told}")
    return image


def _mirror(base: DebianBase, folder: Path) -> apt.PrivateApt:
    found = debian.debian_archives(base.suite, folder / "host")
    kept = [archive for archive in found if archive.suite == base.suite or base.security]
    if base.security and f"{base.suite}-security" not in {archive.suite for archive in kept}:
        raise MissingError(f"base {base.name} wants security fixes, and no mirror known here serves them")
    mirror = apt.PrivateApt(folder / f"apt-{base.suite}{'-security' if base.security else ''}", kept)
    mirror.refresh()
    return mirror


def _fetch(
    base: DebianBase, lock: PackagesLock, folder: Path, mirror: apt.PrivateApt | None = None
) -> dict[Package, Path]:
    """Every locked package and tool that the cache has or the mirror still serves."""
    wanted = (*lock.tools, *lock.packages)
    files = bootstrap.cached(wanted, folder / "debs")
    if len(files) < len(wanted):
        mirror = mirror or _mirror(base, folder)
        served = (*_tools(base, folder, mirror), *_needed(base, mirror))
        bootstrap.fetch(wanted, {remote.name: remote.uri for remote in served}, mirror, folder / "debs")
        files = bootstrap.cached(wanted, folder / "debs")
    return files


def _needed(base: DebianBase, mirror: apt.PrivateApt) -> tuple[apt.Remote, ...]:
    """The base's packages with what every base has, as far as the suite has it (bullseye has no usr-is-merged)."""
    always = [name for name in base_recipe.ALWAYS if name.startswith("?") or mirror.offers(name)]
    return mirror.resolve([*always, *base.packages])


def _tools(base: DebianBase, folder: Path, mirror: apt.PrivateApt) -> tuple[apt.Remote, ...]:
    """Where the programs are that make the base."""
    suite = base_recipe.TOOLS_SUITE.get(base.suite, base.suite)
    if suite != base.suite:
        mirror = _mirror(replace(base, suite=suite, security=False), folder)
    return mirror.locate(base_recipe.TOOLS)


def _packages(remotes: Iterable[apt.Remote]) -> tuple[Package, ...]:
    return tuple(
        Package(name=remote.name, version=remote.version, arch=remote.arch, sha256=remote.sha256) for remote in remotes
    )


def _listed(packages: Sequence[Package]) -> str:
    names = [f"{package.name} {package.version}" for package in packages]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def key(lock: PackagesLock) -> str:
    """A name for everything that shapes the image of a lock."""
    shape = [
        str(replace(lock, digest=None, made_by="")),
        str(base_recipe.RECIPE),
        *base_recipe.DROP,
        *base_recipe.COMPRESS,
        repr(base_recipe.CONFIG),
        base_recipe.COMPILE,
    ]
    return hashlib.sha256("\n".join(shape).encode()).hexdigest()[:20]


def layout(lock: PackagesLock, out: Path | None = None) -> Path:
    """Where the image of a lock is, or will be."""
    return (out or paths.cache_dir() / "bases") / key(lock)


def _cached(folder: Path, lock: PackagesLock) -> BaseImage | None:
    found = layout(lock, folder)
    try:
        digest = oci.manifest_digest(found)
    except FileNotFoundError:
        return None
    return BaseImage(layout=found, digest=digest, lock=replace(lock, digest=digest))


def _make(lock: PackagesLock, files: Mapping[Package, Path], folder: Path, say: Say) -> BaseImage:
    """Bootstrap; what is half-done is in a folder that the next run removes, the result is moved in whole."""
    began = time.monotonic()
    for leftover in folder.glob("work-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    say(f"bootstrapping a base of {len(lock.packages)} {lock.suite} packages")
    with tempfile.TemporaryDirectory(prefix="work-", dir=folder, ignore_cleanup_errors=True) as name:
        work = Path(name)
        rootfs, tools = bootstrap.bootstrap(
            [files[tool] for tool in lock.tools],
            [(package, files[package]) for package in lock.packages],
            epoch=lock.epoch,
            work=work,
        )
        digest = oci.write_layout(
            work / "layout",
            rootfs,
            oci.Recipe(
                drop=base_recipe.DROP,
                compress=(str(tools / "usr/bin/zstd"), *base_recipe.COMPRESS),
                epoch=lock.epoch,
                config=base_recipe.CONFIG,
                created_by=f"mmdebstrap {lock.suite}, {len(lock.packages)} packages, {key(lock)}",
            ),
        )
        (work / "layout").rename(layout(lock, folder))
    say(f"base bootstrapped in {time.monotonic() - began:.0f} s: {digest}")
    return BaseImage(layout=layout(lock, folder), digest=digest, lock=replace(lock, digest=digest))
