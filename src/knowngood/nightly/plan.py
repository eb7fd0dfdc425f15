"""What a night does: which cells are built again and which run their suite, the oldest proof first. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from knowngood.evidence import Evidence, Where
from knowngood.nightly.model import Check, Report, Result, State


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell, as far as planning is concerned."""

    id: str
    inputs: str
    """SHA-256 over all that shapes its image."""
    recorded: bool = True
    """Whether it has an image.json: without one there is nothing to compare a rebuild with."""
    proven: str | None = None
    """When this very image last passed this very suite on this node (ISO 8601); `None`: never."""
    rebuilt: str | None = None
    """The date on which a build from nothing last gave the recorded digest; `None`: never."""
    seconds: Mapping[str, float] | None = None
    """What a check of it took before, by the check's name."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for."""

    checks: frozenset[Check] = frozenset(Check)
    share: int = 2
    """Cells that are built again."""
    budget: float | None = None
    """Seconds after which no rebuild and no suite begins that would not end within them."""
    expires: int = 7
    """Days."""
    among: frozenset[str] | None = None
    """The cells whose suites may run (a pairwise covering set); `None`: all."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One check of one subject."""

    check: Check
    cell: Cell | None = None
    key: str = ""

    @property
    def estimate(self) -> float:
        """Seconds, by what it took before; 0 where it was never done."""
        return (self.cell.seconds or {}).get(self.check, 0.0) if self.cell else 0.0


def plan(cells: Sequence[Cell], settings: Settings, now: datetime, whole: str) -> tuple[list[Task], list[Result]]:
    """The tasks in their order, and the results of what is not done; `whole` is the key of what is of no one cell."""
    tasks = [Task(check=check, key=whole) for check in (Check.FILES, Check.UPSTREAM, Check.AUDIT)]
    rebuilds = sorted(
        filter(lambda cell: cell.recorded, cells), key=lambda cell: (cell.rebuilt or "", cell.proven or "", cell.id)
    )
    share, others = rebuilds[: settings.share], rebuilds[settings.share :]
    tasks += [Task(check=Check.REBUILD, cell=cell, key=cell.inputs) for cell in share]
    left = [_left(Check.REBUILD, cell, f"last {cell.rebuilt or 'never'}") for cell in others]
    left += [_left(Check.REBUILD, cell, "it has no image.json") for cell in cells if not cell.recorded]
    for cell in sorted(cells, key=lambda cell: (cell.proven or "", cell.id)):
        if valid(cell.proven, now, settings.expires):
            days = (now - datetime.fromisoformat(str(cell.proven))).days
            note = f"{days} d old, expires in {settings.expires - days}"
            left.append(_left(Check.SUITE, cell, note, State.PROVEN))
        elif settings.among is not None and cell.id not in settings.among:
            left.append(_left(Check.SUITE, cell, "not in the pairwise set"))
        else:
            tasks.append(Task(check=Check.SUITE, cell=cell, key=cell.inputs))
    asked = settings.checks
    return [task for task in tasks if task.check in asked], [item for item in left if item.check in asked]


def _left(check: Check, cell: Cell, note: str, state: State = State.LEFT) -> Result:
    return Result(check=check, subject=cell.id, key=cell.inputs, state=state, outcome=str(state), note=note)


def fits(task: Task, spent: float, settings: Settings) -> bool:
    """Whether there is time for it; what is asked of a service is always done."""
    if task.cell is None or settings.budget is None:
        return True
    return spent < settings.budget and spent + task.estimate <= settings.budget


def no_time(task: Task, settings: Settings) -> Result:
    """The result of a task that there was no time for."""
    assert task.cell is not None  # noqa: S101  # only those of a cell cost time
    return _left(task.check, task.cell, f"no time left of {(settings.budget or 0) / 60:g} min")


def valid(proven: str | None, now: datetime, days: int) -> bool:
    """Whether a proof has not expired."""
    return proven is not None and now - datetime.fromisoformat(proven) < timedelta(days=days)


def proof(
    runs: Iterable[Evidence], image: str | None, node: Mapping[str, Any], *, gpus: bool, quick: bool
) -> str | None:
    """When this very image last passed on this node; a run on a GPU counts for a CPU, a whole one for a quick one.

    The suite is part of the image: the same digest is the same suite.
    """
    good = [
        run.when
        for run in runs
        if run.ok
        and image is not None
        and run.image == image
        and run.node == node
        and run.where is not Where.BARE
        and (run.where is Where.CONTAINER_GPU or not gpus)
        and (quick or not run.quick)
    ]
    return max(good, key=datetime.fromisoformat, default=None)


def rebuilt(reports: Iterable[Report], cell: str, inputs: str) -> str | None:
    """The last date on which a build from nothing of the same inputs gave the recorded digest."""
    return max(
        (
            report.date
            for report in reports
            for result in report.results
            if (result.check, result.subject, result.key) == (Check.REBUILD, cell, inputs)
            and result.state is State.DONE
            and result.outcome in ("same", "flaky")
        ),
        default=None,
    )


def took(reports: Sequence[Report], cell: str) -> dict[str, float]:
    """Seconds that the checks of a cell took the last time."""
    return {
        str(result.check): result.seconds
        for report in sorted(reports, key=lambda report: report.date)
        for result in report.results
        if result.subject == cell and result.state is State.DONE
    }


def remaining(tasks: Iterable[Task], done: Mapping[str, Result]) -> list[Task]:
    """What is still to be done of a night that was begun; what a service did not answer is asked again."""
    from knowngood.nightly.model import task as named

    found = []
    for item in tasks:
        known = done.get(named(item.check, item.cell.id if item.cell else ""))
        if known is None or known.key != item.key or unanswered([known]):
            found.append(item)
    return found


def unanswered(results: Collection[Result]) -> bool:
    """Whether a service, or this host, did not give an answer."""
    return any(finding.severity in ("unknown", "missing") for result in results for finding in result.findings)
