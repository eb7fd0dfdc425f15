"""Runs mmdebstrap: from the files of pinned Debian packages to a root file system as a tar file.

mmdebstrap sees one archive only, made here of exactly the pinned packages. What a mirror serves today, and what the
host has installed, cannot shape the result.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from knowngood.base import base_recipe, debian_host, private_apt
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture, detect_host_architecture

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from knowngood.lock.debian_lock import DebianPackage

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
        f"--setup-hook={base_recipe.MERGE_USR}",
        f"--customize-hook={base_recipe.COMPILE}",
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
        raise KnowngoodError(f"mmdebstrap failed with status {result.returncode}; the end of its output:\n{tail}")
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
