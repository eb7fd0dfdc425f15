"""Writes a whole site at once: it is made beside the old one, which it then replaces; what stayed the same is linked.

Between the two renames the folder is away for an instant; a run that was killed there is mended by the next one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from knowngood.errors import UsageError

MARK = "catalog.json"


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Make `folder` hold exactly these files; returns the names of those that are new or changed."""
    folder = folder.absolute()
    aside = folder.with_name(f".{folder.name}.old")
    if not folder.exists() and aside.exists():
        aside.rename(folder)
    _ours(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.new."))
    try:
        made.chmod(0o755)
        changed = [name for name, text in files.items() if _place(made / name, text.encode(), folder / name)]
        if not changed and folder.is_dir() and sum(1 for path in folder.rglob("*") if path.is_file()) == len(files):
            return []
        if aside.exists():
            shutil.rmtree(aside)
        if folder.exists():
            folder.rename(aside)
        made.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return changed


def _ours(folder: Path) -> None:
    """Refuse to replace what is no site."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is no folder; name one for the site, as in -o public")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise UsageError(f"{folder} holds something else than a site; name a folder that is empty or not there")


def _place(path: Path, data: bytes, old: Path) -> bool:
    """Put the file there, as a link to the old one when that has the same bytes; returns whether it had not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if old.is_file() and not old.is_symlink() and old.stat().st_size == len(data) and old.read_bytes() == data:
        os.link(old, path)
        return False
    path.write_bytes(data)
    return True
