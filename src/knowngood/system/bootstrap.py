"""From pinned Debian packages to a root file system as a tar file: fetch, serve locally, mmdebstrap.

mmdebstrap sees one archive only, made here of exactly the pinned packages: what an archive serves today, and what
the host has installed, cannot shape the result.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from knowngood.errors import KnowngoodError, MissingError
from knowngood.system import apt, base_recipe, debian

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from knowngood.system.packages_lock import Package

# Modules that mmdebstrap loads and that perl-base, all that a small host has, lacks.
PERL_PROBE = 'use Pod::Usage; use Time::HiRes; use Math::BigInt; use Term::ANSIColor; require "sys/ioctl.ph";'


def cached(packages: Iterable[Package], cache: Path) -> dict[Package, Path]:
    """Those packages that are in the cache, checked by sha256."""
    paths = {package: cache / _file(package) for package in packages}
    return {package: path for package, path in paths.items() if _is(package, path)}


def fetch(packages: Sequence[Package], served: Mapping[str, str], mirror: apt.PrivateApt, cache: Path) -> None:
    """Get into the cache, checked by sha256, what can be had of the packages that are not there.

    `served` says where the mirror has a package's present version: older ones lie beside it for a while.
    """
    cache.mkdir(parents=True, exist_ok=True)
    have = cached(packages, cache)
    missing = [package for package in packages if package not in have and package.name in served]
    parts = {package: cache / f"{_file(package)}.part" for package in missing}
    mirror.fetch([(address(package, served[package.name]), part) for package, part in parts.items()])
    for package, part in parts.items():
        if _is(package, part):
            part.rename(cache / _file(package))
        else:
            part.unlink(missing_ok=True)


def address(package: Package, present: str) -> str:
    """Where a version of a package lies, given where its present version does: the same folder of the pool."""
    version = package.version.rpartition(":")[2].replace("+", "%2b")
    return f"{present.rpartition('/')[0]}/{package.name.replace('+', '%2b')}_{version}_{package.arch}.deb"


def _file(package: Package) -> str:
    return f"{package.name}-{package.sha256}.deb"


def _is(package: Package, path: Path) -> bool:
    try:
        with path.open("rb") as read:
            return hashlib.file_digest(read, "sha256").hexdigest() == package.sha256
    except FileNotFoundError:
        return False


def archive(packages: Iterable[tuple[Package, Path]], into: Path) -> str:
    """Make a package archive of the files in a folder; returns its line for a sources.list."""
    into.mkdir(parents=True)
    stanzas = []
    for package, path in packages:
        (into / path.name).symlink_to(path)
        control = apt.run(["dpkg-deb", "--field", str(path)]).strip()
        stanzas.append(f"{control}\nFilename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {package.sha256}\n")
    (into / "Packages").write_text("\n".join(stanzas))
    return f"deb [trusted=yes] copy://{into} ./"


def arguments(
    mmdebstrap: Path, source: str, packages: Sequence[Package], target: Path, *, root: bool
) -> tuple[str, ...]:
    """The command line that bootstraps all the packages into a tar file."""
    return (
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")[: 7 if root else 0],
        str(mmdebstrap),
        f"--mode={'root' if root else 'unshare'}",
        "--variant=essential",
        "--architectures=amd64",
        "--format=tar",
        f"--include={','.join(package.name for package in packages)}",
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=pkgCacheGen::ForceEssential ","',
        '--aptopt=pkgCacheGen::ForceImportant ","',
        f"--setup-hook={base_recipe.MERGE_USR}",
        f"--customize-hook={base_recipe.COMPILE}",
        "",  # the suite: the archive has but one
        str(target),
        source,
    )


def bootstrap(
    tools: Sequence[Path], packages: Sequence[tuple[Package, Path]], *, epoch: int, work: Path
) -> tuple[Path, Path]:
    """Run mmdebstrap under SOURCE_DATE_EPOCH; returns the tar file and the folder with the unpacked tools."""
    root = os.geteuid() == 0
    if not root and not shutil.which("newuidmap"):
        raise MissingError(
            "bootstrapping a base needs root, or newuidmap with a range in /etc/subuid: install the package uidmap"
        )
    for tool in tools:
        apt.unpack(tool, work / "tools")
    target = work / "rootfs.tar"
    argv = arguments(
        work / "tools/usr/bin/mmdebstrap",
        archive(packages, work / "archive"),
        [package for package, _ in packages],
        target,
        root=root,
    )
    environment = {
        "PATH": f"{work / 'tools/usr/bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SOURCE_DATE_EPOCH": str(epoch),
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(work),
        **_perl(work),
    }
    done = subprocess.run(
        argv,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-15:])
        raise KnowngoodError(f"mmdebstrap failed with status {done.returncode}; the end of what it said:\n{last}")
    return target, work / "tools"


def _perl(work: Path) -> dict[str, str]:
    """Where perl finds what the host's own lacks: the host's suite has packages that match its perl."""
    if subprocess.run(["perl", "-e", PERL_PROBE], check=False, capture_output=True).returncode == 0:
        return {}
    own = apt.PrivateApt(work / "perl-apt", debian.host_archives())
    own.refresh()
    needed = [remote.name for remote in own.resolve(["perl"])]
    modules = [name for name in needed if name.startswith(("perl-modules-", "libperl5"))]
    for package in own.download(modules, work / "perl-debs"):
        apt.unpack(package, work / "perl")
    folders = [*work.glob("perl/usr/share/perl/5.*"), *work.glob("perl/usr/lib/*/perl/5.*")]
    return {"PERL5LIB": ":".join(map(str, folders))}
