"""Files on this machine: the folder of data files, the cache folder with its locks, and atomic writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# `shutil` and `tempfile` are imported in functions: few commands need them, and they take as long as `json`.

_PACKAGE = Path(__file__).resolve().parent.parent


@cache
def data_folder() -> Path:
    """Return the folder that holds `matrix.yaml` and the other data files: facts, rules, incidents, templates.

    In a checkout of this program it is that checkout, wherever the program is installed, so that facts and rules are of
    the same place as the cells. Elsewhere it is the checkout from which the program runs
    (`packages/knowngood/src/knowngood` below it); installed from a wheel it is `knowngood/_data`, to which the wheels
    of the other distributions add theirs.
    """
    with contextlib.suppress(OSError):  # the working folder was removed
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / "packages/knowngood/src/knowngood").is_dir() and (folder / FACTS_FOLDER).is_dir():
                return folder
    checkout = _PACKAGE.parents[3] if len(_PACKAGE.parents) > 3 else _PACKAGE
    if (checkout / "packages/knowngood/src").is_dir() and _PACKAGE.is_relative_to(checkout / "packages"):
        return checkout
    return _PACKAGE / "_data"


FACTS_FOLDER = "packages/knowngood-facts/facts"
RULES_FOLDER = "packages/knowngood-facts/rules"
INCIDENTS_FOLDER = "packages/knowngood-diagnose/incidents"
REPRODUCTIONS_FOLDER = "packages/knowngood-diagnose/reproductions"
"""Where a checkout, and the data of an installed program, have what the companions know."""


def cache_folder() -> Path:
    """Return the cache folder: $KNOWNGOOD_CACHE, else $XDG_CACHE_HOME/knowngood, else ~/.cache/knowngood.

    Everything in it can be made again.
    """
    if own := os.environ.get("KNOWNGOOD_CACHE"):
        return Path(own).absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "knowngood"
    return Path.home() / ".cache" / "knowngood"


def user_data_folder() -> Path:
    """Return the folder for what a user keeps: $XDG_DATA_HOME/knowngood, else ~/.local/share/knowngood."""
    if shared := os.environ.get("XDG_DATA_HOME"):
        return Path(shared).absolute() / "knowngood"
    return Path.home() / ".local" / "share" / "knowngood"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a new folder in the cache that only this user can read, and remove it when the block ends.

    The process that uses it has a lock on it, which the system releases when that process ends, however it ends.
    """
    import shutil
    import tempfile

    home = cache_folder() / "scratch"
    with contextlib.ExitStack() as held:
        with lock_folder(home):
            folder = Path(tempfile.mkdtemp(dir=home))
            held.enter_context(_flock(folder, wait=True))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_stale_scratch() -> None:
    """Remove the scratch folders of processes that were killed; each command does this when it starts."""
    home = cache_folder() / "scratch"
    with contextlib.suppress(OSError), _flock(home, wait=False):  # no such folder, or another process looks at it
        for leftover in home.iterdir():
            import shutil

            with contextlib.suppress(OSError), _flock(leftover, wait=False):  # no process uses it
                shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def private_file(name: str, content: str) -> Iterator[Path]:
    """Give a path at which the processes of this user can read `content` until the block ends.

    On Linux the content is only in memory, under a path in /proc that ends with this process, however it ends.
    Elsewhere it is a file in a scratch folder.
    """
    with contextlib.ExitStack() as stack:
        if sys.platform == "linux":
            file = stack.enter_context(os.fdopen(os.memfd_create(name), "w", encoding="utf-8"))
            os.fchmod(file.fileno(), 0o600)
            path = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        else:
            path = stack.enter_context(scratch_folder()) / name
            path.touch(mode=0o600)
            file = stack.enter_context(path.open("w", encoding="utf-8"))
        file.write(content)
        file.flush()
        yield path


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, for one process at a time; waits for it, and creates the folder when needed.

    The lock is on the folder itself, so that it leaves no file, and ends when its process ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _flock(folder, wait=True):
        yield


@contextlib.contextmanager
def _flock(folder: Path, *, wait: bool) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


def write_atomically(path: Path, content: str | bytes) -> bool:
    """Write `content` (text as UTF-8) to `path`, and return whether that changed the file.

    The content is written to a file beside it that is then renamed. A reader, or a process that is killed, sees the old
    content or the new one, never a part.
    """
    data = content.encode() if isinstance(content, str) else content
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    import tempfile

    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return True
