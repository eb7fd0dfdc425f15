"""Debian's Chromium, unpacked with the libraries that the host lacks; nothing is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

from knowngood.system import apt, debian


def unpack(folder: Path) -> Path:
    """The browser as a program; the host's own where it has one."""
    if own := shutil.which("chromium"):
        return Path(own)
    status = Path("/var/lib/dpkg/status")
    packages = apt.PrivateApt(folder / "apt", debian.host_archives(), installed=status)
    packages.refresh()
    wanted = [remote.name for remote in packages.resolve(["chromium", "fonts-liberation"])]
    root = folder / "root"
    for package in packages.download(wanted, folder / "packages"):
        apt.unpack(package, root)
        package.unlink()
    libraries = ":".join(sorted({str(path.parent) for path in root.rglob("*.so*")}))
    program = folder / "chromium"
    program.write_text(
        f'#!/bin/sh\nexport LD_LIBRARY_PATH="{libraries}"\nexec "{root}/usr/lib/chromium/chromium" "$@"\n'
    )
    program.chmod(0o755)
    return program
