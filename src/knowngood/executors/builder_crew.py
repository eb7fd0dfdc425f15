"""Gives work to several builders, each in a thread of its own, until nothing is left that they can do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from knowngood.core.errors import KnowngoodError, MissingError, error_from_os
from knowngood.core.notify import Notify
from knowngood.executors.builder import Builder

Work = TypeVar("Work")
Product = TypeVar("Product")
Result = TypeVar("Result")


NO_BUILDER_LEFT = "no builder is left; run it again when one answers, what is finished is kept"


class BuilderLostError(MissingError):
    """The builder stopped answering (exit 4)."""


class BuilderCrew(Generic[Work, Product, Result]):
    """The builders that still answer; each of them does one work at a time."""

    def __init__(
        self,
        builders: Iterable[Builder],
        do_work: Callable[[Builder, Work], Product],
        stop: threading.Event,
        notify: Notify,
    ) -> None:
        """Prepare the crew. `do_work` ends early when `stop` is set, and raises `BuilderLostError` for its builder."""
        self.builders = list(builders)
        self._do_work, self._stop, self._notify = do_work, stop, notify

    def run(
        self,
        take: Callable[[Builder], Work | None],
        settle: Callable[[Builder, Work, Product | KnowngoodError], Iterable[Result]],
    ) -> Generator[Result]:
        """Yield the results that `settle` returns, until `take` gives no idle builder work and none is running.

        `settle` gets the product of a work, or its failure; after that, `take` may give the work to another builder. A
        builder that is lost leaves the crew. When the caller ends early, all work is stopped.
        """
        running: dict[Future[Product], tuple[Builder, Work]] = {}
        results: list[Iterable[Result]] = []
        with ThreadPoolExecutor(max(1, len(self.builders))) as pool:
            try:
                while True:
                    busy = [builder for builder, _ in running.values()]
                    for builder in [builder for builder in self.builders if builder not in busy]:
                        if (work := take(builder)) is not None:
                            running[pool.submit(self._do_work, builder, work)] = builder, work
                    for result in results:
                        yield from result  # the builders work in the meantime
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    results = []
                    for future in done:
                        builder, work = running.pop(future)
                        results.append(settle(builder, work, self._outcome(future, builder)))
            except BaseException:
                self._stop.set()
                raise

    def _outcome(self, future: Future[Product], builder: Builder) -> Product | KnowngoodError:
        """Return the product of the work, or its failure; a lost builder leaves the crew."""
        try:
            return future.result()
        except KnowngoodError as error:
            if isinstance(error, BuilderLostError):
                self.builders.remove(builder)
                others = ", ".join(other.name for other in self.builders)
                consequence = f"its unfinished tasks move to {others}" if others else "no builder is left"
                self._notify(f"builder {builder.name} stopped answering ({error}): {consequence}")
            return error
        except OSError as error:
            if (failure := error_from_os(error)) is None:
                raise
            return failure
