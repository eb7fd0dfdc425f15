"""Gives work to several builders, each in a thread of its own, and remembers which builder failed with what."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, Protocol, TypeVar

from knowngood.core.errors import KnowngoodError, MissingError, failure_from_error
from knowngood.core.notify import Notify
from knowngood.executors.builder import Builder


class BuilderTask(Protocol):
    """Something that a builder makes."""

    @property
    def name(self) -> str:
        """A name that no other task of the run has."""


Task = TypeVar("Task", bound=BuilderTask)
Product = TypeVar("Product")


class BuilderLostError(MissingError):
    """The builder stopped answering (exit 4)."""


class BuilderCrew(Generic[Task, Product]):
    """The builders that still answer. Each of them does some tasks at a time; these are its work."""

    def __init__(self, builders: Iterable[Builder], stop: threading.Event, notify: Notify) -> None:
        """Prepare the crew. When `stop` is set, all work is to end early."""
        self.builders = list(builders)
        self.running: dict[Future[Product], tuple[Builder, Sequence[Task]]] = {}
        self.failures: dict[str, dict[str, KnowngoodError]] = defaultdict(dict)
        """For each task, by its name, the builders that failed, and why."""
        self.done: set[str] = set()
        """The names of the tasks whose work gave a product."""
        self.notes: dict[str, list[str]] = defaultdict(list)
        """For each task, by its name, the builders that were lost with it."""
        self._stop, self._notify = stop, notify

    def run(
        self,
        take: Callable[[Builder], Sequence[Task] | None],
        do_work: Callable[[Builder, Sequence[Task]], Product],
    ) -> Generator[tuple[Builder, Sequence[Task], Product]]:
        """Yield each work that is done, until `take` gives no idle builder work and none is running.

        `take` may give the tasks of a failed work to another builder. A builder that is lost leaves the crew. When the
        caller ends early, all work is stopped.
        """
        done: list[tuple[Builder, Sequence[Task], Product]] = []
        with ThreadPoolExecutor(max(1, len(self.builders))) as pool:
            try:
                while True:
                    busy = [builder for builder, _ in self.running.values()]
                    for builder in [builder for builder in self.builders if builder not in busy]:
                        if work := take(builder):
                            self.running[pool.submit(do_work, builder, work)] = builder, work
                    yield from done  # the builders work in the meantime
                    if not self.running:
                        return
                    done = []
                    for future in wait(self.running, return_when=FIRST_COMPLETED).done:
                        builder, work = self.running.pop(future)
                        try:
                            done.append((builder, work, future.result()))
                            self.done |= {task.name for task in work}
                        except (KnowngoodError, OSError) as error:
                            self._note_failure(builder, work, error)
            except BaseException:
                self._stop.set()
                raise

    def may_do(self, builder: Builder, name: str) -> bool:
        """Return whether the builder may do a task: it waits, and neither this builder nor the content has failed."""
        running = {task.name for _, work in self.running.values() for task in work}
        has_failed = builder.name in self.failures[name] or self.final_failure(name)
        return not has_failed and name not in self.done | running

    def final_failure(self, name: str) -> KnowngoodError | None:
        """Return why no builder will do this task; `None` while one of them may.

        A builder that lacks something fails with exit code 4: another one may have it. All else is final.
        """
        failures = self.failures[name]
        if final := next((error for error in failures.values() if error.exit_code != MissingError.exit_code), None):
            return final
        if any(builder.name not in failures for builder in self.builders):
            return None
        lost = MissingError("no builder is left; run it again when one answers, what is finished is kept")
        return next(reversed(failures.values()), lost)

    def _note_failure(self, builder: Builder, work: Sequence[Task], error: KnowngoodError | OSError) -> None:
        failure = failure_from_error(error)
        if isinstance(error, BuilderLostError):
            self.builders.remove(builder)
            others = ", ".join(other.name for other in self.builders)
            consequence = f"its unfinished tasks move to {others}" if others else "no builder is left"
            self._notify(f"builder {builder.name} stopped answering ({error}): {consequence}")
        for task in work:
            if isinstance(error, BuilderLostError):
                self.notes[task.name].append(f"begun by {builder.name}, which stopped answering")
            else:
                self.failures[task.name][builder.name] = failure
