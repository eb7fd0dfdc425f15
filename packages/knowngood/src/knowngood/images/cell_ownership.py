"""The lock that one run holds on a cell, so that two runs wait for each other and can say for whom they wait.

`locks/<cell>.lock` under the cache is locked while a run works on the cell. The system releases it when the process
ends, however it ends. `locks/<cell>.json` describes the owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.core.notify import Notify

_OWNER_SECONDS = 1.0
"""How long to wait for the file that describes the owner of a lock."""


@contextlib.contextmanager
def hold_cell(cell: str, *, notify: Notify) -> Iterator[None]:
    """Be the only run that works on `cell`; wait for the run that holds it now, and say which one it is."""
    from filelock import FileLock, Timeout

    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{cell}.lock", thread_local=False)
    owner = folder / f"{cell}.json"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        notify(f"waits for {_describe_owner(owner)}")
        lock.acquire()
    try:
        write_atomically(owner, json.dumps(_this_run(), indent=1) + "\n")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _this_run() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _describe_owner(owner: Path) -> str:
    """Return the command and the process of the run that holds the lock.

    A run that has just taken the lock writes the file a moment later, so a file that is not there is waited for.
    """
    end = time.monotonic() + _OWNER_SECONDS
    while True:
        try:
            run = json.loads(owner.read_text(encoding="utf-8"))
            return f"`{run['command']}` (process {run['pid']} on {run['host']}, since {run['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            if time.monotonic() > end:
                return "another run"
            time.sleep(0.02)
