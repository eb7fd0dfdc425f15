"""Checks whose time is the compiling of kernels, in workers beside the one of the others.

Compiling keeps CPU cores busy and the GPU idle, so they do not slow each other down where there are cores to spare: on
an H100 half of the suite's time was such checks. What measures time or memory waits until they have ended.
"""

from __future__ import annotations

import os
import queue
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Callable

from smoke_tests.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smoke_tests.catalogue import Check

WORKERS = 2
CORES = 4  # for each of them: its own thread, and compilers of Triton and Inductor


def count_workers(environment: dict[str, Any], *, shared_gpu: bool) -> int:
    """How many further workers help: none without a GPU that takes several processes, or without cores to spare."""
    if not environment.get("gpu") or not shared_gpu:
        return 0
    return min(WORKERS, len(os.sched_getaffinity(0)) // CORES)


class Beside:
    """Further workers, and what came of the checks that were given to them.

    The checks of a group run one after the other in one worker, which has compiled for the next what they share.
    """

    def __init__(self, runners: Sequence[Runner]) -> None:
        self.runners = tuple(runners)
        self._idle: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        for runner in runners:
            self._idle.put(runner)
        self._pool = ThreadPoolExecutor(max_workers=len(runners))
        self._results: dict[str, Future[dict[str, Any]]] = {}
        self._runner_of: dict[str, Runner] = {}

    def begin(self, checks: Iterable[Check], run: Callable[[Check, Runner], dict[str, Any]]) -> None:
        """Start to run these checks, each group in its order; ``run`` is called in other threads."""
        groups: dict[str, list[Check]] = {}
        for check in checks:
            groups.setdefault(check.compiles, []).append(check)
            self._results[check.id] = Future()
        for name, group in groups.items():
            self._pool.submit(self._run_group, name, group, run)

    def _run_group(self, name: str, group: list[Check], run: Callable[[Check, Runner], dict[str, Any]]) -> None:
        runner = self._runner_of[name] = self._idle.get()
        for check in group:
            result = self._results[check.id]
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(run(check, runner))
                except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                    result.set_exception(error)
        self._idle.put(runner)

    def result(self, check: Check) -> dict[str, Any] | None:
        """What came of a check, as soon as it has ended; None if it was not begun here."""
        result = self._results.get(check.id)
        return result.result() if result is not None else None

    def runner_of(self, check: Check) -> Runner | None:
        """The worker that ran the checks of this one's group; None if none did."""
        return self._runner_of.get(check.compiles)

    def wait(self) -> None:
        """Return when every check that was begun has ended."""
        wait(self._results.values())

    def close(self) -> None:
        """End the workers; checks that have not ended have no result."""
        for result in self._results.values():
            result.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        while not all(result.done() for result in self._results.values()):
            for runner in self.runners:
                runner.kill()  # again and again: a check may be about to start its worker
            time.sleep(0.05)
        for runner in self.runners:
            runner.close()
