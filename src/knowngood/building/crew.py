"""Works through many cells: in this process one after the other, or several at once, each in a process of its own.

A cell that fails, or whose process dies, does not stop the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from knowngood.building import schedule
from knowngood.building.results import Result, Status
from knowngood.building.schedule import Refusal, Room, Task, Wait
from knowngood.errors import KnowngoodError, MissingError

_PAUSE = 0.2


class Work(Protocol):
    """A cell that is being worked on."""

    def done(self) -> bool:
        """Whether it has come out, well or not."""

    def result(self) -> Result:
        """How it came out."""

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does; it says no more, and `done` tells when it has."""

    def stop(self) -> None:
        """End it now; what it was at is cleaned up."""


class Done:
    """Work that was done at once, in this process."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def done(self) -> bool:
        """It is."""
        return True

    def result(self) -> Result:
        """How it came out."""
        return self._result

    def interrupt(self) -> None:
        """There is nothing to end."""

    def stop(self) -> None:
        """There is nothing to end."""


class Child:
    """Work in a process of its own, this same program for one cell; what it says goes to stderr line by line."""

    def __init__(self, cell: str, argv: Sequence[str], root: Path) -> None:
        self._cell, self._root = cell, root
        self._began = time.monotonic()
        self._asked, self._wanted = False, True
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the result
        self._process = subprocess.Popen(
            [sys.executable, "-m", "knowngood", *argv, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._relay = threading.Thread(target=self._say, daemon=True)
        self._relay.start()

    def done(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def result(self) -> Result:
        """What it wrote; a failure when it wrote nothing whole."""
        self._relay.join()
        with self._out as out:
            out.seek(0)
            text = out.read()
        try:
            return self._read(json.loads(text))
        except (ValueError, KeyError, TypeError):
            code = self._process.returncode
            said = f"killed by signal {-code}" if code < 0 else f"exit {code}"
            error = KnowngoodError(f"its process ended without a result ({said}); run it again")
            seconds = time.monotonic() - self._began
            return Result(cell=self._cell, status=Status.FAILED, seconds=seconds, error=error)

    def _read(self, document: Any) -> Result:
        """The result in what it wrote; any of the errors of a wrong document for one that has none."""
        (stored,) = document["cells"]
        return Result.read(stored, self._root)

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does; it says no more."""
        self._wanted = False
        self._ask()

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        self._ask()
        self._process.wait()

    def _ask(self) -> None:
        if not self._asked:  # once: a second time would break off its cleaning up
            self._asked = True
            # Not SIGINT: where a shell runs this program in the background, all that it starts ignores that.
            self._process.terminate()

    def _say(self) -> None:
        assert self._process.stderr is not None  # noqa: S101
        for line in self._process.stderr:
            if self._wanted:
                print(line, end="", file=sys.stderr, flush=True)


def work(
    tasks: Sequence[Task],
    start: Callable[[Task], Work],
    room: Callable[[], Room],
    *,
    jobs: int,
    say: Callable[[str], None],
) -> Iterator[Result]:
    """Start the tasks as `schedule.choose` says, and give their results as they come; all are ended with the caller."""
    waiting, running = list(tasks), dict[Task, Work]()
    try:
        while waiting or running:
            for item in [task for task, job in running.items() if job.done()]:
                yield running.pop(item).result()
            if not waiting:
                time.sleep(_PAUSE if running else 0)
                continue
            match schedule.choose(waiting, running.keys(), room(), jobs=jobs):
                case Task() as item:
                    waiting.remove(item)
                    running[item] = start(item)
                case Refusal(task=item, reason=reason):
                    waiting.remove(item)
                    yield Result(cell=item.cell, status=Status.FAILED, seconds=0, error=MissingError(reason))
                case Wait(reason=reason):
                    say(reason)
                    time.sleep(_PAUSE)
    finally:
        for job in running.values():
            job.stop()
