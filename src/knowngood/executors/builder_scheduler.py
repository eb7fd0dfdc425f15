"""Schedules the tasks of a run, layers and cells, on several builders. The tasks of a lost builder go to the others."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.executors.builder import Builder
from knowngood.images import cell_tasks
from knowngood.images.cell_tasks import (
    BuildTask,
    CellResult,
    CellStatus,
    MachineResources,
    ScheduleRefusal,
    ScheduleWait,
)
from knowngood.images.task_crew import RunningTask

_POLL_SECONDS = 0.2
_ANSWER_CHECK_SECONDS = 10.0
"""Seconds between two checks of whether a builder still answers."""
_MISSED_ANSWERS = 3
"""After so many missed answers in a row, a builder counts as lost."""
_KEEP_SHARE = 0.5
"""A builder finishes an early layer after this share of the expected time, even when other work is ready."""


@dataclass(frozen=True, kw_only=True)
class SchedulerActions:
    """What the scheduler does to builders, and what it learns about them."""

    start: Callable[[BuildTask, Builder], RunningTask]
    free: Callable[[Builder], MachineResources]
    """Returns the free memory and disk of the builder's machine."""
    answers: Callable[[Builder], bool]
    """Returns whether the builder answers now."""
    notify: Notify
    clock: Callable[[], float] = time.monotonic


@dataclass(eq=False)
class _BuilderState:
    builder: Builder
    jobs: int
    """The most tasks at once."""
    running: dict[BuildTask, RunningTask] = field(default_factory=dict)
    abandoned: set[BuildTask] = field(default_factory=set)
    """Early layers that it began and left to their cells."""
    missed: int = 0
    """Missed answers in a row."""


class BuilderScheduler:
    """The state of one run: which tasks wait, and which task runs on which builder."""

    def __init__(
        self,
        tasks: Sequence[BuildTask],
        layers: Collection[BuildTask],
        builders: Sequence[tuple[Builder, int]],
        actions: SchedulerActions,
        early: Sequence[BuildTask] = (),
    ) -> None:
        """Prepare to run `tasks` on `builders`, each with the most tasks at once.

        `layers` are the tasks that are not cells. `early` are layers of single cells: a builder that has nothing else
        to do makes them before their cell starts. When other work is ready, it stops a layer that it has just begun,
        and takes the cell of that layer first.
        """
        self._waiting = list(tasks)
        self._waiting_early = list(early)
        self._early = frozenset(early)
        self._layers = frozenset(layers)
        self._states = [_BuilderState(builder, jobs) for builder, jobs in builders]
        self._actions = actions
        self._failures: dict[BuildTask, dict[str, KnowngoodError]] = defaultdict(dict)
        """For each task the builders that could not do it, and why."""
        self._notes: dict[BuildTask, list[str]] = defaultdict(list)
        self._start_times: dict[BuildTask, float] = {}
        self._layer_seconds, self._layer_disk = 0.0, 0
        """The sums over all finished layers."""

    def results(self) -> Iterator[CellResult]:
        """Yield the result of each cell when it is ready. All tasks end with the caller."""
        ended = threading.Event()
        threading.Thread(target=self._count_missed_answers, args=(ended,), daemon=True).start()
        try:
            while self._waiting or any(state.running for state in self._states):
                for state in list(self._states):
                    for task in [task for task, work in state.running.items() if work.done()]:
                        if work := state.running.pop(task, None):  # `None` if the builder was lost with another task
                            yield from self._finish(state, task, work.result())
                for state in [state for state in self._states if state.missed >= _MISSED_ANSWERS]:
                    self._remove_builder(state, f"it did not answer {_MISSED_ANSWERS} times in a row")
                yield from self._give_up_impossible()
                for state in sorted(self._states, key=self._load):
                    self._start_tasks(state)
                time.sleep(_POLL_SECONDS)
        finally:
            ended.set()
            for state in self._states:
                for work in state.running.values():
                    work.stop()

    def _load(self, state: _BuilderState) -> tuple[int, int]:
        """Return the sort key: fewest tasks first, then most memory, because the heaviest tasks are first in line."""
        return len(state.running), -self._actions.free(state.builder).memory

    def _fits(self, task: BuildTask, state: _BuilderState) -> bool:
        """Return whether a builder has the memory for a task. If no builder has it, all of them may try."""
        enough = [one for one in self._states if self._actions.free(one.builder).memory >= task.need.memory]
        return state in enough or not enough

    def _count_missed_answers(self, ended: threading.Event) -> None:
        while not ended.wait(_ANSWER_CHECK_SECONDS):
            for state in list(self._states):
                state.missed = 0 if self._actions.answers(state.builder) else state.missed + 1

    def _finish(self, state: _BuilderState, task: BuildTask, result: CellResult) -> Iterator[CellResult]:
        name, error = state.builder.name, result.error
        if task in self._layers and error is None:
            self._layer_seconds += self._actions.clock() - self._start_times[task]
            self._layer_disk += task.need.disk
        if task in self._early:
            return  # if it failed, the build of the cell makes the layer
        if error is None:
            if task not in self._layers:
                notes = [result.note, *self._notes[task]]
                notes += [f"built by {name}"] if result.image and result.image.built else []
                yield replace(result, note="; ".join(filter(None, notes)))
        elif not self._actions.answers(state.builder):
            self._waiting.insert(0, task)
            self._note_lost_builder(task, state)
            self._remove_builder(state, str(error))
        else:
            self._failures[task][name] = error
            if isinstance(error, MissingError) or error.exit_code == MissingError.exit_code:
                # The builder lacks something: another one may have it.
                self._waiting.insert(0, task)
            else:
                yield from self._give_up(task, error)

    def _note_lost_builder(self, task: BuildTask, state: _BuilderState) -> None:
        self._notes[task].append(f"begun by {state.builder.name}, which stopped answering")

    def _remove_builder(self, state: _BuilderState, reason: str) -> None:
        """Go on without this builder; the other builders get its tasks."""
        self._states.remove(state)
        for task, work in state.running.items():
            work.stop()
            self._note_lost_builder(task, state)
        self._waiting[:0] = [task for task in state.running if task not in self._early]
        state.running.clear()
        others = ", ".join(other.builder.name for other in self._states)
        consequence = f"its unfinished tasks move to {others}" if others else "no builder is left"
        self._actions.notify(f"builder {state.builder.name} stopped answering ({reason}): {consequence}")

    def _give_up_impossible(self) -> Iterator[CellResult]:
        """Give up the tasks that none of the remaining builders can do."""
        for task in list(self._waiting):
            if task not in self._waiting:  # given up with another task
                continue
            failures = self._failures[task]
            if all(state.builder.name in failures for state in self._states):
                self._waiting.remove(task)
                lost = MissingError("no builder is left; run it again when one answers, finished layers are kept")
                yield from self._give_up(task, next(reversed(failures.values()), lost))

    def _give_up(self, task: BuildTask, error: KnowngoodError) -> Iterator[CellResult]:
        """Yield the failure of a task; for layers, the failures of all cells that need them."""
        if task not in self._layers:
            note = "; ".join(self._notes[task])
            yield CellResult(cell=task.cell, status=CellStatus.FAILED, seconds=0, note=note, error=error)
            return
        for other in [other for other in self._waiting if other.after & task.makes]:
            if other in self._waiting:
                self._waiting.remove(other)
                reason = str(error) if other in self._layers else f"it needs {task.cell}, which was not built: {error}"
                consequence = KnowngoodError(reason)
                consequence.exit_code = error.exit_code
                yield from self._give_up(other, consequence)

    def _start_tasks(self, state: _BuilderState) -> None:
        """Start tasks on a builder until it is full or nothing can start."""
        if len(state.running) == state.jobs:
            self._abandon_early_layers(state)
        while len(state.running) < state.jobs:
            match self._choose_task(state, self._waiting, self._waiting):
                case BuildTask() as task:
                    self._waiting.remove(task)
                    self._waiting_early = [one for one in self._waiting_early if not one.makes & task.makes]
                    self._start(task, state)
                case ScheduleRefusal(task=task, reason=reason):
                    name = state.builder.name
                    self._failures[task][name] = MissingError(f"{name}: {reason}")
                case ScheduleWait() if not state.running:
                    layers = [task for task in self._waiting if task in self._layers]
                    early = self._choose_task(state, self._waiting_early, layers)
                    if not isinstance(early, BuildTask):
                        return
                    self._waiting_early.remove(early)
                    self._start(early, state)
                case ScheduleWait():
                    return

    def _abandon_early_layers(self, state: _BuilderState) -> None:
        """Stop early layers that have just begun, if other work is ready; the builds of their cells make them."""
        for task in (self._early - state.abandoned) & state.running.keys():
            seconds = self._actions.clock() - self._start_times[task]
            expected = self._layer_seconds * task.need.disk / self._layer_disk if self._layer_disk else float("inf")
            other = self._choose_task(state, self._waiting, self._waiting)
            if seconds < _KEEP_SHARE * expected and isinstance(other, BuildTask):
                self._actions.notify(
                    f"{state.builder.name} leaves {task.cell} to the build of its cell: other work is ready"
                )
                state.abandoned.add(task)
                state.running[task].interrupt()

    def _choose_task(
        self, state: _BuilderState, candidates: Sequence[BuildTask], awaited: Sequence[BuildTask]
    ) -> BuildTask | ScheduleRefusal | ScheduleWait:
        """Choose one of the candidates for a builder; for layers of the tasks `awaited`, it may have to wait."""
        builder = state.builder
        same_machine = [one for one in self._states if one.builder.machine == builder.machine]
        running_here = [task for one in same_machine for task in one.running]
        running_elsewhere = [task for one in self._states if one not in same_machine for task in one.running]
        possible = [task for task in candidates if builder.name not in self._failures[task] and self._fits(task, state)]
        # Only this builder has in its cache what it finished of an abandoned layer: it takes the layer's cell first.
        possible.sort(key=lambda task: not any(task.makes & layer.makes for layer in state.abandoned))
        others = [*running_elsewhere, *(task for task in awaited if task not in possible)]
        free = self._actions.free(builder)
        return cell_tasks.choose_task(possible, running_here, free, jobs=len(running_here) + 1, others=others)

    def _start(self, task: BuildTask, state: _BuilderState) -> None:
        self._actions.notify(f"{task.cell} goes to {state.builder.name}")
        self._start_times[task] = self._actions.clock()
        state.running[task] = self._actions.start(task, state.builder)
