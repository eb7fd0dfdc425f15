"""Runs tasks: in this process one after the other, or several at once, each in a process of its own.

A cell that fails, or whose process dies, does not stop the others. How many run at once depends on what this machine
has left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from knowngood.core import local_files
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.engine import unpacked_engine
from knowngood.engine.container_engine import Engine
from knowngood.images import cell_tasks
from knowngood.images.cell_tasks import (
    BuildTask,
    CellResult,
    CellStatus,
    MachineResources,
    ScheduleRefusal,
    ScheduleWait,
)

_PAUSE = 0.2
"""Seconds between two looks at the tasks."""


class RunningTask(Protocol):
    """A task that was started."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def result(self) -> CellResult:
        """Return its result; only when it is done."""

    def stop(self) -> None:
        """End it, as Ctrl-C does, and wait until it has cleaned up."""


class FinishedTask:
    """A task that ran in this process, and is done."""

    def __init__(self, result: CellResult) -> None:
        self._result = result

    def done(self) -> bool:
        """Always true: the work ran when it was started."""
        return True

    def result(self) -> CellResult:
        """Return the result that the work gave."""
        return self._result

    def stop(self) -> None:
        """Do nothing: it has ended."""


class TaskProcess:
    """A task in a process of its own: this program for one cell. Its messages go to stderr line by line."""

    def __init__(self, cell: str, argv: Sequence[str], root: Path) -> None:
        self._cell, self._root = cell, root
        self._start = time.monotonic()
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the result
        self._process = subprocess.Popen(
            [sys.executable, "-m", "knowngood", *argv, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=end_with_parent(signal.SIGTERM),
        )
        self._relay = threading.Thread(target=self._relay_messages, daemon=True)
        self._relay.start()

    def done(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def result(self) -> CellResult:
        """Return the result that the process wrote; a failure when it wrote no complete result."""
        self._relay.join()
        code = self._process.wait()  # a process may close its stderr long before it ends
        with self._output as output:
            output.seek(0)
            text = output.read()
        try:
            (stored,) = json.loads(text)["cells"]
            return CellResult.from_document(stored, self._root)
        except (ValueError, KeyError, TypeError):
            end = f"killed by signal {-code}" if code < 0 else f"exit {code}"
            error = KnowngoodError(f"its process ended without a result ({end}); run it again")
            seconds = time.monotonic() - self._start
            return CellResult(cell=self._cell, status=CellStatus.FAILED, seconds=seconds, error=error)

    def stop(self) -> None:
        """End the process, as Ctrl-C does, and wait for it."""
        # Not SIGINT: when a shell runs this program in the background, everything that it starts ignores SIGINT.
        self._process.terminate()
        self._process.wait()

    def _relay_messages(self) -> None:
        assert self._process.stderr is not None  # noqa: S101
        for line in self._process.stderr:
            print(line, end="", file=sys.stderr, flush=True)


def run_tasks(
    tasks: Sequence[BuildTask],
    start: Callable[[BuildTask], RunningTask],
    free: Callable[[], MachineResources],
    *,
    jobs: int,
    notify: Notify,
) -> Iterator[CellResult]:
    """Start the tasks in the order of `cell_tasks.choose_task`, and yield each result when its task ends.

    `free` gives what the machine has left, and `jobs` is the most tasks at once. All tasks end with the caller.
    """
    waiting, running = list(tasks), dict[BuildTask, RunningTask]()
    try:
        while waiting or running:
            for task in [task for task, work in running.items() if work.done()]:
                yield running.pop(task).result()
            if not waiting:
                time.sleep(_PAUSE if running else 0)
                continue
            match cell_tasks.choose_task(waiting, running.keys(), free(), jobs=jobs):
                case BuildTask() as task:
                    waiting.remove(task)
                    running[task] = start(task)
                case ScheduleRefusal(task=task, reason=reason):
                    waiting.remove(task)
                    yield CellResult(cell=task.cell, status=CellStatus.FAILED, seconds=0, error=MissingError(reason))
                case ScheduleWait(reason=reason):
                    notify(reason)
                    time.sleep(_PAUSE)
    finally:
        for work in running.values():
            work.stop()


# Limit and use, in bytes, of the control group of this process: version 2, then version 1.
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def measure_free_resources(engine: Engine) -> MachineResources:
    """Return the free memory of this machine, and the free disk where the engine keeps its data."""
    return MachineResources(memory=_free_memory(), disk=shutil.disk_usage(_engine_data_folder(engine)).free)


def suggest_jobs() -> int:
    """Return how many cells to build at once with the processors of this machine, 1 to 4.

    One for every four processors, because the export of a build keeps several busy.
    """
    return max(1, min(4, (os.cpu_count() or 1) // 4))


def _free_memory() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    free = [int(match[1]) * 1024] if match else []
    for limit, used in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # there is no such group, or it has no limit ("max")
            free.append(int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii")))
    return max(0, min(free, default=0))


def _engine_data_folder(engine: Engine) -> Path:
    """Return the folder of the engine's data; the cache, when that is on another machine or cannot be read."""
    data = unpacked_engine.engine_paths().data if engine.embedded else Path("/var/lib/docker")
    return next(path for path in (data, local_files.cache_folder(), Path.home()) if path.is_dir())
