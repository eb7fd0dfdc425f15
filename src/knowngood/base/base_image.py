"""The bases that matrix.yaml names: bootstrapped from pinned Debian packages, or pulled by digest."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood.base import base_packages, base_recipe, bootstrap, emulation, oci_layout
from knowngood.base.base_packages import DebianBase
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import KnowngoodError, MissingError, UsageError
from knowngood.core.hosts import DEFAULT_HOST, detect_host_architecture
from knowngood.core.local_files import cache_folder, lock_folder, write_atomically
from knowngood.core.notify import Notify
from knowngood.lock.debian_lock import DebianPackage, PackagesLock
from knowngood.project.checkout import Project

_IMAGE = re.compile(r"(?P<name>[a-z0-9][a-z0-9._/:-]*)@(?P<digest>sha256:[0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """A base image in an OCI layout, and the lock that makes it again."""

    layout: Path
    digest: str
    lock: PackagesLock

    @property
    def packages(self) -> tuple[DebianPackage, ...]:
        """The Debian packages in it."""
        return self.lock.packages

    @property
    def context(self) -> str:
        """The address for `--build-context base=...`."""
        return f"oci-layout://{self.layout}@{self.digest}"


def prepare_base(project: Project, name: str, *, locked: bool, notify: Notify, refresh: bool = False) -> str:
    """Return the build context for `FROM base`; the base is bootstrapped unless it is in the cache.

    A lock that had to be made again is written. With `locked` that is an error; with `refresh` it always happens.
    """
    settings = project.matrix.find_base(name)
    if settings.image:
        return pulled_base_context(settings.image)
    assert settings.bootstrap is not None  # noqa: S101  # the schema of matrix.yaml wants exactly one of the two
    base = DebianBase(
        name=name,
        suite=settings.bootstrap.suite,
        packages=settings.bootstrap.packages,
        python=settings.python,
        host=settings.host,
    )
    committed = read_packages_lock(project, name)
    image = refresh_base(base, notify=notify) if refresh else build_base(base, committed, locked=locked, notify=notify)
    path = packages_lock_path(project, name)
    if locked and image.lock != committed:
        raise KnowngoodError(f"{path} is stale; run `{base.lock_command}` and commit it")
    write_atomically(path, str(image.lock))
    return image.context


def find_builder_base(project: Project, name: str) -> str | None:
    """Return the base on whose system the layers above a base are made; `None` for a base of x86-64, made on itself.

    Above a base of another processor it is the base of the same packages for this machine's processor. A machine of
    that other processor makes them on the base itself.
    """
    host = project.matrix.find_base(name).host
    if host == DEFAULT_HOST:
        return None
    native = name.removesuffix(f"-{host}")
    return name if native not in project.matrix.bases or not emulation.needs_emulation(host) else native


def packages_lock_path(project: Project, name: str) -> Path:
    """Return the path of the committed list of the base's Debian packages."""
    return project.tree.folder / "bases" / name / "packages.lock"


def read_packages_lock(project: Project, name: str) -> PackagesLock | None:
    """Return the committed lock of a base, `None` if there is none; `InputError` with every defect of it."""
    path = packages_lock_path(project, name)
    return PackagesLock.parse(read_data_text(path), file=str(path)) if path.exists() else None


def read_base_digest(project: Project, name: str) -> str | None:
    """Return the digest that a base should have, from its image's name or its committed lock; `None` without a lock."""
    if image := project.matrix.find_base(name).image:
        return image.rpartition("@")[2]
    lock = read_packages_lock(project, name)
    return lock.digest if lock else None


def find_cached_digest(project: Project, name: str) -> str | None:
    """Return the digest of a bootstrapped base if it is in the cache."""
    lock = None if project.matrix.find_base(name).image else read_packages_lock(project, name)
    return lock.digest if lock and (base_layout(lock) / "index.json").exists() else None


def expected_base_context(project: Project, name: str) -> str:
    """Return the build context that a base will have, without making it; for `--dry-run`."""
    if image := project.matrix.find_base(name).image:
        return pulled_base_context(image)
    lock = read_packages_lock(project, name)
    if lock is None:
        path = packages_lock_path(project, name)
        raise KnowngoodError(f"base {name} has no {path}; run `knowngood lock --base {name}`")
    return f"oci-layout://{base_layout(lock)}@{lock.digest}"


def pulled_base_context(image: str) -> str:
    """Return the build context of an image that is pulled; its name must contain its digest."""
    if not _IMAGE.fullmatch(image):
        raise UsageError(f"base image {image!r} has no digest: write it as name@sha256:<64 hex digits>")
    return f"docker-image://{image}"


def build_base(
    base: DebianBase, lock: PackagesLock | None, *, locked: bool, notify: Notify, out: Path | None = None
) -> BaseImage:
    """Return the base image that the lock pins, bootstrapped unless it is in `out` (by default in the cache).

    Where there is no lock, or its packages cannot be had any more, `locked` raises `KnowngoodError`. Otherwise a new
    lock is made, which the caller must write.
    """
    folder = out or _bases_folder()
    stale = _describe_stale_lock(base, lock)
    if lock and not stale:
        if image := _find_base(folder, lock):
            return _check_digest(base, lock, image, locked, notify)
        with lock_folder(folder):
            files, gone = base_packages.fetch_packages(base, lock, folder)
            if not gone:
                image = _find_base(folder, lock) or _bootstrap_base(lock, files, folder, notify)
                return _check_digest(base, lock, image, locked, notify)
            stale = f"the mirror no longer has {_list_packages(gone)}"
    if locked:
        raise KnowngoodError(f"base {base.name}: {stale}; run `{base.lock_command}` and commit the new lock")
    if lock:
        notify(f"base {base.name}: WARNING: {stale}: making a new lock, the digest of the base will change")
    return refresh_base(base, notify=notify, out=out)


def refresh_base(base: DebianBase, *, notify: Notify, out: Path | None = None) -> BaseImage:
    """Return the base image of the packages that the mirror serves now, with a new lock."""
    folder = out or _bases_folder()
    with lock_folder(folder):
        mirror = base_packages.open_mirror(base, folder)
        lock = base_packages.resolve_base(base, folder, mirror)
        if f"python{base.python}" not in {package.name for package in lock.packages}:
            raise UsageError(
                f"base {base.name} should have Python {base.python}, and {base.suite} has no python{base.python}"
            )
        if image := _find_base(folder, lock):
            return image
        files, gone = base_packages.fetch_packages(base, lock, folder, mirror)
        if gone:
            raise MissingError(f"the mirror lists {_list_packages(gone)} but does not serve it: try again")
        return _bootstrap_base(lock, files, folder, notify)


def base_key(lock: PackagesLock) -> str:
    """Return the name for everything that shapes the image of a lock."""
    shape = [
        str(replace(lock, digest=None, made_by="")),
        str(base_recipe.RECIPE),
        *base_recipe.DROP,
        *base_recipe.COMPRESS,
        repr(base_recipe.CONFIG),
        base_recipe.COMPILE,
    ]
    return hashlib.sha256("\n".join(shape).encode()).hexdigest()[:20]


def base_layout(lock: PackagesLock, out: Path | None = None) -> Path:
    """Return the folder of the OCI layout of a lock's image, whether it exists or not."""
    return (out or _bases_folder()) / base_key(lock)


def _bases_folder() -> Path:
    return cache_folder() / "bases"


def _describe_stale_lock(base: DebianBase, lock: PackagesLock | None) -> str | None:
    """Return why the lock is not for this base, as the end of a sentence; `None` when it is."""
    if lock is None:
        return "there is no packages.lock"
    if (lock.suite, lock.requested) != (base.suite, base.requested):
        return (
            f"its packages.lock is for {lock.suite} with {' '.join(lock.requested)}, "
            f"matrix.yaml asks for {base.suite} with {' '.join(base.requested)}"
        )
    return None


def _check_digest(base: DebianBase, lock: PackagesLock, image: BaseImage, locked: bool, notify: Notify) -> BaseImage:
    """Return the image if it has the digest that the lock expects; otherwise warn, or with `locked` refuse."""
    if lock.digest in (None, image.digest):
        return image
    problem = (
        f"base {base.name}: the locked packages came out as {image.digest}, the lock has {lock.digest}: "
        f"how a base is made has changed; run `{base.lock_command}` and commit the new lock"
    )
    if locked:
        raise KnowngoodError(problem)
    notify(f"WARNING: {problem}")
    return image


def _list_packages(packages: Sequence[DebianPackage]) -> str:
    names = [f"{package.name} {package.version}" for package in packages]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _find_base(folder: Path, lock: PackagesLock) -> BaseImage | None:
    layout = base_layout(lock, folder)
    try:
        digest = oci_layout.manifest_digest(layout)
    except FileNotFoundError:
        return None
    return BaseImage(layout=layout, digest=digest, lock=replace(lock, digest=digest))


def _bootstrap_base(lock: PackagesLock, files: Mapping[DebianPackage, Path], folder: Path, notify: Notify) -> BaseImage:
    """Bootstrap in a work folder, which the next run removes if this one is killed; move the whole result in place."""
    start = time.monotonic()
    for leftover in folder.glob("work-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    notify(f"bootstrapping a base of {len(lock.packages)} {lock.suite} packages")
    with tempfile.TemporaryDirectory(prefix="work-", dir=folder, ignore_cleanup_errors=True) as name:
        work = Path(name)
        machine = detect_host_architecture() or DEFAULT_HOST
        with emulation.emulate_host(lock.host, notify):
            rootfs, tools = bootstrap.bootstrap_rootfs(
                [files[tool] for tool in lock.tools_for(machine)],
                [(package, files[package]) for package in lock.packages],
                epoch=lock.epoch,
                work=work,
                host=lock.host,
            )
        digest = oci_layout.write_layout(
            work / "layout",
            rootfs,
            oci_layout.LayoutRecipe(
                drop=base_recipe.DROP,
                compress=(str(tools / "usr/bin/zstd"), *base_recipe.COMPRESS),
                epoch=lock.epoch,
                config=base_recipe.CONFIG,
                created_by=f"mmdebstrap {lock.suite}, {len(lock.packages)} packages, {base_key(lock)}",
                host=lock.host,
            ),
        )
        (work / "layout").rename(base_layout(lock, folder))
    notify(f"base bootstrapped in {time.monotonic() - start:.0f} s: {digest}")
    return BaseImage(layout=base_layout(lock, folder), digest=digest, lock=replace(lock, digest=digest))
