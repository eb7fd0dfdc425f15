"""A daemon in namespaces of its own: processes and mounts that all end with it.

`unshare` gives it a PID and a mount namespace, `tini` is that namespace's init. Whatever ends one of the
three (a graceful stop, `kill -9`, the out-of-memory killer), the kernel ends every process and every mount
below, so no shim, no container and no overlay mount outlives the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that can be told from a later one with the same id."""

    pid: int
    started: int  # clock ticks after boot

    def alive(self) -> bool:
        """Whether it still runs."""
        return _started(self.pid) == self.started

    def children(self) -> tuple[Process, ...]:
        """Its children that run."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with contextlib.suppress(OSError):
            pids = [int(pid) for pid in path.read_text().split()]
            return tuple(Process(pid=pid, started=started) for pid in pids if (started := _started(pid)) is not None)
        return ()

    def send(self, number: signal.Signals) -> None:
        """Send a signal if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait until it ended; False if it still runs after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.alive():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def parse_stat(text: str) -> tuple[str, int]:
    """Read (state, start time) out of /proc/PID/stat."""
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _started(pid: int) -> int | None:
    try:
        state, started = parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, IndexError, ValueError):
        return None
    return None if state in "ZX" else started


def load(record: Path) -> Process | None:
    """Read a process from the file that `start` wrote; None if there is none, or it ended."""
    try:
        process = Process(**json.loads(record.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return process if process.alive() else None


def start(argv: Sequence[str], *, init: Path, env: Mapping[str, str], log: Path, record: Path) -> Process:
    """Start a daemon, detached from this session and terminal."""
    unshare = [
        "unshare",
        "--mount",
        "--propagation",
        "slave",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    with log.open("ab") as written:
        child = subprocess.Popen(
            [*unshare, "--", str(init), "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    return note(child, record)


def note(child: subprocess.Popen[bytes], record: Path) -> Process:
    """Record a process that may outlive this one, so that `load` finds it."""
    process = Process(pid=child.pid, started=_started(child.pid) or 0)
    record.write_text(json.dumps({"pid": process.pid, "started": process.started}))
    child.returncode = 0  # it is meant to outlive this process: no warning that it still runs
    return process


def stop(process: Process, *, patience: float) -> None:
    """End a daemon: ask its init, and after `patience` seconds kill the namespace."""
    for init in process.children():
        init.send(signal.SIGTERM)
    if not process.wait(patience):
        for init in process.children():
            init.send(signal.SIGKILL)
        process.send(signal.SIGKILL)
        process.wait(patience)
