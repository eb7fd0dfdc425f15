"""The bases that matrix.yaml names, bootstrapped from pinned Debian packages.

Runs mmdebstrap: from the files of pinned Debian packages to a root file system as a tar file.

mmdebstrap sees one archive only, made here of exactly the pinned packages. What a mirror serves today, and what the
host has installed, cannot shape the result.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.base import base_packages, debian_host, emulation, oci_layout, private_apt
from knowngood.base.base_packages import DebianBase
from knowngood.core.child_processes import end_with_parent
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import KnowngoodError, MissingError, UsageError, failure_from_output
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture, detect_host_architecture
from knowngood.core.local_files import cache_folder, lock_folder, write_atomically
from knowngood.core.notify import Notify
from knowngood.lock.debian_lock import DebianPackage, PackagesLock
from knowngood.project.checkout import Project

if TYPE_CHECKING:
    from collections.abc import Iterable

# Modules that mmdebstrap loads. A small host has only the package perl-base, which lacks them.
PERL_PROBE = 'use Pod::Usage; use Time::HiRes; use Math::BigInt; use Term::ANSIColor; require "sys/ioctl.ph";'


def write_local_archive(packages: Iterable[tuple[DebianPackage, Path]], into: Path) -> str:
    """Make a package archive of the files in the new folder `into`; return its line for a sources.list."""
    into.mkdir(parents=True)
    stanzas = []
    for package, path in packages:
        (into / path.name).symlink_to(path)
        control = private_apt.run_command(["dpkg-deb", "--field", str(path)]).strip()
        stanzas.append(f"{control}\nFilename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {package.sha256}\n")
    (into / "Packages").write_text("\n".join(stanzas))
    return f"deb [trusted=yes] copy://{into} ./"


def mmdebstrap_command(  # noqa: PLR0913
    mmdebstrap: Path,
    source: str,
    packages: Sequence[DebianPackage],
    target: Path,
    *,
    root: bool,
    host: HostArchitecture = DEFAULT_HOST,
) -> tuple[str, ...]:
    """Return the command that bootstraps all the packages into the tar file `target`. Pure."""
    return (
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")[: 7 if root else 0],
        str(mmdebstrap),
        f"--mode={'root' if root else 'unshare'}",
        "--variant=essential",
        f"--architectures={host.debian}",
        "--format=tar",
        *(() if host is detect_host_architecture() else ("--skip=check/qemu",)),  # it wants one program more to look
        f"--include={','.join(package.name for package in packages)}",
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=pkgCacheGen::ForceEssential ","',
        '--aptopt=pkgCacheGen::ForceImportant ","',
        f"--setup-hook={base_packages.MERGE_USR}",
        f"--customize-hook={base_packages.COMPILE}",
        "",  # the suite: the archive has only one
        str(target),
        source,
    )


def bootstrap_rootfs(
    tools: Sequence[Path],
    packages: Sequence[tuple[DebianPackage, Path]],
    *,
    epoch: int,
    work: Path,
    host: HostArchitecture = DEFAULT_HOST,
) -> tuple[Path, Path]:
    """Run mmdebstrap with SOURCE_DATE_EPOCH set to `epoch`; return the tar file and the folder with the unpacked tools.

    `tools` and `packages` are .deb files; `work` is an empty folder for everything that is made. Programs
    of another `host` than this machine must run here (`emulation`).
    """
    root = os.geteuid() == 0
    if not root and not shutil.which("newuidmap"):
        raise MissingError(
            "bootstrapping a base needs root, or newuidmap with a range in /etc/subuid: install the package uidmap"
        )
    for tool in tools:
        private_apt.unpack_deb(tool, work / "tools")
    target = work / "rootfs.tar"
    argv = mmdebstrap_command(
        work / "tools/usr/bin/mmdebstrap",
        write_local_archive(packages, work / "archive"),
        [package for package, _ in packages],
        target,
        root=root,
        host=host,
    )
    environment = {
        "PATH": f"{work / 'tools/usr/bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SOURCE_DATE_EPOCH": str(epoch),
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(work),
        **_perl(work),
    }
    result = subprocess.run(
        argv,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=end_with_parent(),
    )
    if result.returncode:
        tail = "\n".join(result.stderr.splitlines()[-15:])
        message = f"mmdebstrap failed with status {result.returncode}; the end of its output:\n{tail}"
        raise failure_from_output(message, result.stderr)
    return target, work / "tools"


def _perl(work: Path) -> dict[str, str]:
    """Return the environment in which perl finds the modules that the host lacks.

    They come from the host's own suite, whose packages match its perl.
    """
    if subprocess.run(["perl", "-e", PERL_PROBE], check=False, capture_output=True).returncode == 0:
        return {}
    apt = private_apt.PrivateApt(work / "perl-apt", debian_host.find_host_archives())
    apt.refresh()
    names = [remote.name for remote in apt.resolve(["perl"])]
    modules = [name for name in names if name.startswith(("perl-modules-", "libperl5"))]
    for package in apt.download(modules, work / "perl-debs"):
        private_apt.unpack_deb(package, work / "perl")
    folders = [*work.glob("perl/usr/share/perl/5.*"), *work.glob("perl/usr/lib/*/perl/5.*")]
    return {"PERL5LIB": ":".join(map(str, folders))}


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
    """Return the digest that a base should have, from its committed lock; `None` without a lock."""
    lock = read_packages_lock(project, name)
    return lock.digest if lock else None


def find_cached_digest(project: Project, name: str) -> str | None:
    """Return the digest of a base if it is in the cache."""
    lock = read_packages_lock(project, name)
    return lock.digest if lock and (base_layout(lock) / "index.json").exists() else None


def expected_base_context(project: Project, name: str) -> str:
    """Return the build context that a base will have, without making it; for `--dry-run`."""
    lock = read_packages_lock(project, name)
    if lock is None:
        path = packages_lock_path(project, name)
        raise KnowngoodError(f"base {name} has no {path}; run `knowngood lock --base {name}`")
    return f"oci-layout://{base_layout(lock)}@{lock.digest}"


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
        str(base_packages.RECIPE),
        *base_packages.DROP,
        *base_packages.COMPRESS,
        repr(base_packages.CONFIG),
        base_packages.COMPILE,
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
            rootfs, tools = bootstrap_rootfs(
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
                drop=base_packages.DROP,
                compress=(str(tools / "usr/bin/zstd"), *base_packages.COMPRESS),
                epoch=lock.epoch,
                config=base_packages.CONFIG,
                created_by=f"mmdebstrap {lock.suite}, {len(lock.packages)} packages, {base_key(lock)}",
                host=lock.host,
            ),
        )
        (work / "layout").rename(base_layout(lock, folder))
    notify(f"base bootstrapped in {time.monotonic() - start:.0f} s: {digest}")
    return BaseImage(layout=base_layout(lock, folder), digest=digest, lock=replace(lock, digest=digest))
