"""Works through layers and cells on many builders; what one that dies was at goes to the others."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from knowngood.builders.builder import Builder
from knowngood.building import schedule
from knowngood.building.crew import Work
from knowngood.building.results import Result, Status
from knowngood.building.schedule import Refusal, Room, Task, Wait
from knowngood.errors import KnowngoodError, MissingError

_PAUSE = 0.2
_LOOK = 10.0
"""Seconds between two looks at whether a builder still answers."""
_SILENT = 3
"""So often in a row, and it is given up."""
_WORTH = 0.5
"""Of a spare layer's time: once it has had so much, other work waits for it."""


@dataclass(frozen=True, kw_only=True)
class Hands:
    """What the fleet does things with."""

    start: Callable[[Task, Builder], Work]
    room: Callable[[Builder], Room]
    answers: Callable[[Builder], bool]
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic


@dataclass(eq=False)
class _Member:
    builder: Builder
    jobs: int
    running: dict[Task, Work] = field(default_factory=dict)
    left: set[Task] = field(default_factory=set)
    """Layers that it had begun when there was other work."""
    missed: int = 0


class Fleet:
    """Tasks on their way through some builders."""

    def __init__(
        self,
        tasks: Sequence[Task],
        layers: Collection[Task],
        builders: Sequence[tuple[Builder, int]],
        hands: Hands,
        spare: Sequence[Task] = (),
    ) -> None:
        """`layers` are those of the tasks that are no cells; beside each builder stands how many tasks it takes.

        `spare` are layers of single cells: one that has nothing else to do makes them before their cell begins, and
        leaves one that it has just begun when there is something else, that cell first.
        """
        self._waiting = list(tasks)
        self._spare = list(spare)
        self._spares = frozenset(spare)
        self._layers = frozenset(layers)
        self._members = [_Member(builder, jobs) for builder, jobs in builders]
        self._hands = hands
        self._failed: dict[Task, dict[str, KnowngoodError]] = defaultdict(dict)
        """Which builders could not do a task, and why."""
        self._story: dict[Task, list[str]] = defaultdict(list)
        self._began: dict[Task, float] = {}
        self._seconds, self._disk = 0.0, 0
        """What layers took that have come out."""

    def results(self) -> Iterator[Result]:
        """Each cell's result as it comes; all work is ended with the caller."""
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        watch.start()
        try:
            while self._waiting or any(member.running for member in self._members):
                for member in list(self._members):
                    for item in [task for task, work in member.running.items() if work.done()]:
                        if work := member.running.pop(item, None):  # nobody's any more, where it was lost with another
                            yield from self._came_out(member, item, work.result())
                for member in [one for one in self._members if one.missed >= _SILENT]:
                    self._lose(member, f"it did not answer {_SILENT} times in a row")
                yield from self._hopeless()
                for member in sorted(self._members, key=self._load):
                    self._place(member)
                time.sleep(_PAUSE)
        finally:
            ended.set()
            for member in self._members:
                for work in member.running.values():
                    work.stop()

    def _load(self, member: _Member) -> tuple[int, int]:
        """Whom to ask first: who has least to do, then who has most memory, for what is heaviest comes first."""
        return len(member.running), -self._hands.room(member.builder).memory

    def _fits(self, item: Task, member: _Member) -> bool:
        """Whether a builder has the memory for it, or none has: then it may try."""
        enough = [one for one in self._members if self._hands.room(one.builder).memory >= item.need.memory]
        return member in enough or not enough

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(_LOOK):
            for member in list(self._members):
                member.missed = 0 if self._hands.answers(member.builder) else member.missed + 1

    def _came_out(self, member: _Member, item: Task, result: Result) -> Iterator[Result]:
        name, error = member.builder.name, result.error
        if item in self._layers and error is None:
            self._seconds += self._hands.clock() - self._began[item]
            self._disk += item.need.disk
        if item in self._spares:
            return  # made or not: its cell sees what there is
        if error is None:
            if item not in self._layers:
                told = [result.note, *self._story[item]]
                told += [f"built by {name}"] if result.image and result.image.built else []
                yield replace(result, note="; ".join(filter(None, told)))
        elif not self._hands.answers(member.builder):
            self._waiting.insert(0, item)
            self._story[item].append(f"begun by {name}, which stopped answering")
            self._lose(member, str(error))
        else:
            self._failed[item][name] = error
            if isinstance(error, MissingError) or error.exit_code == MissingError.exit_code:
                # It is about the place, not about what is built: another may do better.
                self._waiting.insert(0, item)
            else:
                yield from self._give_up(item, error)

    def _lose(self, member: _Member, why: str) -> None:
        """Without this builder from now on; what it was at goes to the others."""
        self._members.remove(member)
        for item, work in member.running.items():
            work.stop()
            self._story[item].append(f"begun by {member.builder.name}, which stopped answering")
        self._waiting[:0] = [item for item in member.running if item not in self._spares]
        member.running.clear()
        left = ", ".join(one.builder.name for one in self._members)
        then = f"what it was at goes to {left}" if left else "no builder is left"
        self._hands.say(f"builder {member.builder.name} stopped answering ({why}): {then}")

    def _hopeless(self) -> Iterator[Result]:
        """What no builder that is left can do."""
        for item in list(self._waiting):
            if item not in self._waiting:  # given up with another
                continue
            failed = self._failed[item]
            if all(member.builder.name in failed for member in self._members):
                self._waiting.remove(item)
                lost = MissingError("no builder is left; run it again when one answers, finished layers are kept")
                yield from self._give_up(item, next(reversed(failed.values()), lost))

    def _give_up(self, item: Task, error: KnowngoodError) -> Iterator[Result]:
        """The task has failed; where it is layers, so have those that need them."""
        if item not in self._layers:
            note = "; ".join(self._story[item])
            yield Result(cell=item.cell, status=Status.FAILED, seconds=0, note=note, error=error)
            return
        for other in [task for task in self._waiting if task.after & item.makes]:
            if other in self._waiting:
                self._waiting.remove(other)
                said = str(error) if other in self._layers else f"its {item.cell} was not built: {error}"
                worse = KnowngoodError(said)
                worse.exit_code = error.exit_code
                yield from self._give_up(other, worse)

    def _place(self, member: _Member) -> None:
        """Give a builder what it may do now, as long as there is something."""
        if len(member.running) == member.jobs:
            self._give_way(member)
        while len(member.running) < member.jobs:
            match self._choose(member, self._waiting, self._waiting):
                case Task() as item:
                    self._waiting.remove(item)
                    self._spare = [one for one in self._spare if not one.makes & item.makes]
                    self._start(item, member)
                case Refusal(task=item, reason=reason):
                    here = member.builder.name
                    self._failed[item][here] = MissingError(f"{here}: {reason}")
                case Wait() if not member.running:
                    layers = [task for task in self._waiting if task in self._layers]
                    later = self._choose(member, self._spare, layers)
                    if not isinstance(later, Task):
                        return
                    self._spare.remove(later)
                    self._start(later, member)
                case Wait():
                    return

    def _give_way(self, member: _Member) -> None:
        """What was begun for want of other work is left to its cell when there is some, unless much of it is done."""
        for item in (self._spares - member.left) & member.running.keys():
            so_far = self._hands.clock() - self._began[item]
            expected = self._seconds * item.need.disk / self._disk if self._disk else float("inf")
            other = self._choose(member, self._waiting, self._waiting)
            if so_far < _WORTH * expected and isinstance(other, Task):
                self._hands.say(f"{member.builder.name} leaves {item.cell} to its cell: there is other work now")
                member.left.add(item)
                member.running[item].interrupt()

    def _choose(self, member: _Member, tasks: Sequence[Task], waiting: Sequence[Task]) -> Task | Refusal | Wait:
        """One of these tasks; `waiting` are those for which it may have to wait."""
        here = member.builder
        beside = [task for one in self._members if one.builder.machine == here.machine for task in one.running]
        mine = [task for task in tasks if here.name not in self._failed[task] and self._fits(task, member)]
        others = [task for one in self._members if one.builder.machine != here.machine for task in one.running]
        others += [task for task in waiting if task not in mine]
        # What it has done of a layer that it left is in its cache alone: first the cell that goes on with it.
        mine.sort(key=lambda task: not any(task.makes & left.makes for left in member.left))
        return schedule.choose(mine, beside, self._hands.room(here), jobs=len(beside) + 1, others=others)

    def _start(self, item: Task, member: _Member) -> None:
        self._hands.say(f"{item.cell} goes to {member.builder.name}")
        self._began[item] = self._hands.clock()
        member.running[item] = self._hands.start(item, member.builder)
