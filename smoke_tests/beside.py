"""Checks whose time is the compiling of kernels, in a second worker beside the others.

Compiling keeps one CPU core busy and the GPU idle, so the two do not slow each other down where there are cores to
spare: on an H100 half of the suite's time was such checks. What measures time or memory waits until they have ended.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Callable

from smoke_tests.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smoke_tests.catalogue import Check

CORES = 4  # a main thread for each of the two workers, and Triton's and Inductor's compilers


def has_room(environment: dict[str, Any], *, shared_gpu: bool) -> bool:
    """Whether a second worker helps here: a GPU that takes several processes, and cores to spare."""
    return bool(environment.get("gpu")) and shared_gpu and len(os.sched_getaffinity(0)) >= CORES


class Beside:
    """A second worker, and what came of the checks that were given to it."""

    def __init__(self, runner: Runner | None = None) -> None:
        self.runner = runner or Runner()
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._results: dict[str, Future[dict[str, Any]]] = {}

    def begin(self, checks: Iterable[Check], run: Callable[[Check], dict[str, Any]]) -> None:
        """Start to run these checks, in their order; ``run`` is called in another thread."""
        self._results = {check.id: self._pool.submit(run, check) for check in checks}

    def result(self, check: Check) -> dict[str, Any] | None:
        """What came of a check, as soon as it has ended; None if it was not begun here."""
        result = self._results.get(check.id)
        return result.result() if result is not None else None

    def wait(self) -> None:
        """Return when every check that was begun has ended."""
        wait(self._results.values())

    def close(self) -> None:
        """End the worker; checks that have not ended have no result."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        while not all(result.done() for result in self._results.values()):
            self.runner.kill()  # again and again: a check may be about to start its worker
            time.sleep(0.05)
        self.runner.close()
