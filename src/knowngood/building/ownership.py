"""Who works on a cell: a lock that says whose it is, so that two runs at once wait for each other and can tell why.

`locks/<cell>.lock` under the cache is locked while a run works on the cell, until its holder ends, however that is;
`locks/<cell>.json` says who it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from knowngood.atomic import write_text
from knowngood.errors import KnowngoodError
from knowngood.paths import cache_dir


class HeldError(KnowngoodError):
    """Another run works on the cell, and this one was told not to wait (exit 1)."""


@contextlib.contextmanager
def held(cell: str, *, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Be the one run that works on `cell`, after whoever does now; without `wait`, `HeldError` says who that is."""
    from filelock import FileLock, Timeout

    folder = cache_dir() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{cell}.lock", thread_local=False)
    owner = folder / f"{cell}.json"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise HeldError(f"{cell}: {_who(owner)} is at it; wait for it, or run again without --no-wait") from None
        say(f"waits for {_who(owner)}")
        lock.acquire()
    try:
        write_text(owner, json.dumps(_me(), indent=1) + "\n")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _me() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _who(owner: Path) -> str:
    try:
        said = json.loads(owner.read_text(encoding="utf-8"))
        return f"`{said['command']}` (process {said['pid']} on {said['host']}, since {said['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"  # it has the lock, and has not said yet who it is
