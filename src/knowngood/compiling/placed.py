"""Wheels for many builders: each is compiled by one that has the memory, the strongest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from knowngood.builders import find
from knowngood.builders.builder import Builder
from knowngood.builders.fleet import Fleet, Hands
from knowngood.builders.run import PLENTY, Run
from knowngood.building import crew
from knowngood.building.results import Result, Status
from knowngood.building.schedule import Room, Task
from knowngood.compiling import order, recipe
from knowngood.compiling.on_builder import OnBuilder
from knowngood.compiling.order import Order
from knowngood.compiling.place import Power, Say
from knowngood.errors import KnowngoodError, MissingError

Document = Mapping[str, Any]
"""What `knowngood compile --json` says of a wheel."""
Words = Callable[[Builder, Order], Sequence[str]]
"""The command line for one wheel on one builder."""


class _Making(crew.Child):
    """A compile in a process of its own."""

    def __init__(self, task: str, argv: Sequence[str], root: Path, made: dict[str, Document]) -> None:
        super().__init__(task, argv, root)
        self._task, self._made = task, made

    def _read(self, document: Any) -> Result:
        (stored,) = document["wheels"]
        self._made[self._task] = stored
        if "error" not in stored:
            return Result(cell=self._task, status=Status.BUILT, seconds=stored["seconds"])
        error = KnowngoodError(stored["error"])
        error.exit_code = stored["exit"]
        return Result(cell=self._task, status=Status.FAILED, seconds=0, error=error)


def supply(fleet: Run, wanted: Sequence[Order], words: Words, each: int, say: Say) -> list[Document]:
    """What came of each order, in their order; `each` are the bytes that one job needs at least.

    Cells that differ in nothing that shapes a wheel share one, compiled once. A builder does one compile at a time,
    which takes all of its processors.
    Raises `MissingError` when no builder says what it has.
    """
    powers = _powers(fleet, wanted[0], say)
    shared: dict[tuple[str, ...], list[Order]] = defaultdict(list)
    for one in wanted:
        cell = one.cell
        base = fleet.project.matrix.entry(cell).base
        shared[(one.package, one.version, cell.gpu, cell.cuda, cell.torch, cell.python, base)].append(one)
    of_task = {f"{group[0].package} {group[0].version} for {group[0].cell}": group for group in shared.values()}
    made: dict[str, Document] = {}

    def start(task: Task, builder: Builder) -> crew.Work:
        return _Making(task.cell, words(builder, of_task[task.cell][0]), fleet.project.root, made)

    def room(builder: Builder) -> Room:
        # A compile has all processors of its machine, whatever memory is left: a second one never fits beside it.
        return Room(memory=min(powers[builder.name].memory, 2 * each - 1), disk=PLENTY)

    strongest = sorted(powers, key=lambda name: -recipe.fitting(powers[name].processors, powers[name].memory, each))
    builders = {one.name: one for one in fleet.builders}
    tasks = [Task(cell=name, need=Room(memory=each, disk=0)) for name in of_task]
    hands = Hands(start=start, room=room, answers=find.answers, say=say)
    found: dict[Order, Document] = {}
    for result in Fleet(tasks, (), [(builders[name], 1) for name in strongest], hands).results():
        for number, one in enumerate(of_task[result.cell]):
            found[one] = _document(one, result, made, leads=number == 0)
    return [found[one] for one in wanted]


def _document(one: Order, result: Result, made: Mapping[str, Document], *, leads: bool) -> Document:
    if result.error:
        return order.failed(one, result.error)
    stored = dict(made[result.cell])
    stored["note"] = "; ".join(filter(None, [stored["note"], result.note]))
    return stored if leads else {**stored, "cell": str(one.cell), "status": str(order.Status.PRESENT), "seconds": 0.0}


def _powers(fleet: Run, one: Order, say: Say) -> dict[str, Power]:
    """What each builder has, by name; one that does not say is left out."""

    def ask(builder: Builder) -> Power | KnowngoodError:
        try:
            return OnBuilder(line=fleet.line(builder)).power(one.cell, say)
        except KnowngoodError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip((one.name for one in fleet.builders), pool.map(ask, fleet.builders), strict=True))
    found = {name: answer for name, answer in answers.items() if isinstance(answer, Power)}
    for name, answer in answers.items():
        if isinstance(answer, Power):
            say(f"builder {name} has {answer.memory / 1e9:.1f} GB free, {answer.processors} processors")
        else:
            say(f"builder {name} is left out: {answer}")
    if not found:
        raise MissingError(f"no builder says what memory it has: {next(iter(answers.values()))}")
    return found
