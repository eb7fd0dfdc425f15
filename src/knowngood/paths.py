"""Where knowngood keeps what can be made again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
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
def other_cache(folder: Path) -> Iterator[None]:
    """Everything in this process keeps its things there for a while."""
    before = os.environ.get("KNOWNGOOD_CACHE")
    os.environ["KNOWNGOOD_CACHE"] = str(folder)
    try:
        yield
    finally:
        del os.environ["KNOWNGOOD_CACHE"]
        if before is not None:
            os.environ["KNOWNGOOD_CACHE"] = before


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that only this user can read and that goes in the end, as do those that killed runs left."""
    home = cache_dir() / "scratch"
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as mine:
        with locked(home):
            for left in home.iterdir():
                with contextlib.suppress(OSError), _flocked(left, wait=False):  # nobody has it
                    shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(dir=home))
            mine.enter_context(_flocked(folder, wait=True))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _flocked(folder: Path, *, wait: bool) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; the lock is on the folder itself, so it leaves no file and ends with its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    with _flocked(folder, wait=True):
        yield
