"""A daemon in its own namespaces, so that all of its processes and mounts end with it.

`unshare` gives it a PID and a mount namespace, and `tini` is the init process of that namespace. When one of the three
ends (a graceful stop, `kill -9`, the out-of-memory killer), the kernel ends every process and every mount below it. So
no shim, no container and no overlay mount outlives the daemon. Folders that its programs use wherever their state is
configured to be are private to the namespace too: what they write there is gone with it.
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
class DaemonProcess:
    """A process, distinguished by its start time from a later one with the same id."""

    pid: int
    started: int  # clock ticks after boot

    def alive(self) -> bool:
        """Whether the process still runs."""
        return _read_start_time(self.pid) == self.started

    def children(self) -> tuple[DaemonProcess, ...]:
        """Return the child processes that run now."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with contextlib.suppress(OSError):
            pids = [int(pid) for pid in path.read_text().split()]
            return tuple(
                DaemonProcess(pid=pid, started=started)
                for pid in pids
                if (started := _read_start_time(pid)) is not None
            )
        return ()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait until the process has ended; return False if it still runs after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.alive():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def parse_process_stat(text: str) -> tuple[str, int]:
    """Parse the text of /proc/PID/stat; return the state and the start time in clock ticks after boot."""
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _read_start_time(pid: int) -> int | None:
    try:
        state, started = parse_process_stat(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, IndexError, ValueError):
        return None
    return None if state in "ZX" else started


def load_process(record: Path) -> DaemonProcess | None:
    """Return the process in a file that `record_process` wrote; None if there is none, or it has ended."""
    try:
        process = DaemonProcess(**json.loads(record.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return process if process.alive() else None


# Its arguments are folders, `--` and a command: it mounts a private folder over each, and becomes the command.
_COVER_FOLDERS = (
    'while [ "$1" != -- ]; do mount -t tmpfs -o mode=711 knowngood "$1" || exit; shift; done; shift; exec "$@"'
)


def start_daemon(  # noqa: PLR0913
    argv: Sequence[str], *, init: Path, env: Mapping[str, str], log: Path, record: Path, private: Sequence[str] = ()
) -> DaemonProcess:
    """Start a daemon, detached from this session and terminal, and record it in the file `record`.

    `private` are existing folders in whose place the daemon gets an empty one in memory, which ends with it.
    """
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
    with log.open("ab") as output:
        child = subprocess.Popen(
            [*unshare, "--", "sh", "-c", _COVER_FOLDERS, "sh", *private, "--", str(init), "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    return record_process(child, record)


def record_process(child: subprocess.Popen[bytes], record: Path) -> DaemonProcess:
    """Write a process that may outlive this one to a file, from which `load_process` reads it."""
    process = DaemonProcess(pid=child.pid, started=_read_start_time(child.pid) or 0)
    record.write_text(json.dumps({"pid": process.pid, "started": process.started}))
    child.returncode = 0  # it may outlive this process: Python must not warn that it still runs
    return process


def stop_daemon(process: DaemonProcess, *, patience: float) -> None:
    """Ask the daemon's init process to end, and kill the namespace after `patience` seconds."""
    for init in process.children():
        init.send(signal.SIGTERM)
    if not process.wait(patience):
        for init in process.children():
            init.send(signal.SIGKILL)
        process.send(signal.SIGKILL)
        process.wait(patience)
