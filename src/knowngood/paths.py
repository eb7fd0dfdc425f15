"""Where knowngood keeps what can be made again."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def cache_dir() -> Path:
    """The cache folder: $KNOWNGOOD_CACHE, else $XDG_CACHE_HOME/knowngood, else ~/.cache/knowngood."""
    if own := os.environ.get("KNOWNGOOD_CACHE"):
        return Path(own).absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "knowngood"
    return Path.home() / ".cache" / "knowngood"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; the lock is on the folder itself, so it leaves no file and ends with its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
