"""Writes the folder of a site, and reads the `catalog.json` of a site from a folder, a file or a URL.

A site is made beside the old one, which it then replaces as a whole; unchanged files are hard links to the old ones.
Between the two renames the folder does not exist for an instant; when a run is killed there, the next one repairs it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from knowngood.core.errors import UsageError

SITE_MARKER = "catalog.json"


def write_site(folder: Path, files: Mapping[str, str | bytes]) -> list[str]:
    """Make `folder` contain exactly these files, and return the names of those that are new or changed.

    Raises:
        UsageError: the folder contains something other than a site.
    """
    folder = folder.absolute()
    aside = folder.with_name(f".{folder.name}.old")
    if not folder.exists() and aside.exists():
        aside.rename(folder)
    _require_site_folder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.new."))
    try:
        new.chmod(0o755)
        changed = []
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            if _write_or_link(new / name, data, folder / name):
                changed.append(name)
        if not changed and folder.is_dir() and sum(1 for path in folder.rglob("*") if path.is_file()) == len(files):
            return []
        if aside.exists():
            shutil.rmtree(aside)
        if folder.exists():
            folder.rename(aside)
        new.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return changed


def _require_site_folder(folder: Path) -> None:
    """Refuse to replace what is not a site."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is not a folder; name one for the site, as in -o public")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / SITE_MARKER).is_file():
        raise UsageError(
            f"{folder} contains something other than a site; name a folder that is empty or does not exist"
        )


def _write_or_link(path: Path, data: bytes, old: Path) -> bool:
    """Write the file, or link it to the old one when that has the same bytes; return whether it was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if old.is_file() and not old.is_symlink() and old.stat().st_size == len(data) and old.read_bytes() == data:
        os.link(old, path)
        return False
    path.write_bytes(data)
    return True
