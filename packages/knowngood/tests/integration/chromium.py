"""Debian's Chromium, unpacked with the libraries that the host lacks, without installing anything."""

from __future__ import annotations

import shutil
from pathlib import Path

from knowngood.base import debian_host, private_apt


def unpack(folder: Path) -> Path:
    """Return the path of the browser: the host's own if it has one, otherwise one unpacked into `folder`."""
    if own := shutil.which("chromium"):
        return Path(own)
    status = Path("/var/lib/dpkg/status")
    packages = private_apt.PrivateApt(folder / "apt", debian_host.find_host_archives(), installed=status)
    packages.refresh()
    wanted = [remote.name for remote in packages.resolve(["chromium", "fonts-liberation"])]
    root = folder / "root"
    for package in packages.download(wanted, folder / "packages"):
        private_apt.unpack_deb(package, root)
        package.unlink()
    libraries = ":".join(sorted({str(path.parent) for path in root.rglob("*.so*")}))
    program = folder / "chromium"
    program.write_text(
        f'#!/bin/sh\nexport LD_LIBRARY_PATH="{libraries}"\nexec "{root}/usr/lib/chromium/chromium" "$@"\n'
    )
    program.chmod(0o755)
    return program
