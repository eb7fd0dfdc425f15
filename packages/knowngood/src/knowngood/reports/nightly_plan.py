"""Plans a nightly run: which cells are rebuilt and which run their suites, the oldest proof first. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from knowngood.evidence.run_evidence import Evidence, RunPlace, valid_runs
from knowngood.reports.nightly_report import (
    NightlyCheck,
    NightlyReport,
    NightlyResult,
    NightlySeverity,
    ResultState,
    task_name,
    unexamined_finding,
)


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """What planning has to know of a cell."""

    id: str
    inputs: str
    """The SHA-256 of everything that shapes its image."""
    recorded: bool = True
    """Whether it has an image.json; without one there is nothing to compare a rebuild with."""
    proven: str | None = None
    """When this very image last passed this very suite on this node (ISO 8601), or `None`."""
    rebuilt: str | None = None
    """The last date on which a build from nothing gave the recorded digest, or `None`."""
    seconds: Mapping[str, float] | None = None
    """How long each check of it took the last time, by the name of the check."""


@dataclass(frozen=True, kw_only=True)
class NightlySettings:
    """What the user requests of a nightly run."""

    checks: frozenset[NightlyCheck] = frozenset(NightlyCheck)
    share: int = 2
    """How many cells are rebuilt."""
    budget: float | None = None
    """In seconds; a rebuild or suite that is not expected to end within them is not begun."""
    expires: int = 7
    """Days after which a proof no longer counts."""


@dataclass(frozen=True, kw_only=True)
class NightlyTask:
    """One check of one subject."""

    check: NightlyCheck
    cell: PlannedCell | None = None
    """`None` for a check of the whole project."""
    key: str = ""
    """A hash of the inputs."""

    @property
    def name(self) -> str:
        """The name of the task in the stored progress."""
        return task_name(self.check, self.cell.id if self.cell else "")

    @property
    def estimate(self) -> float:
        """The expected seconds: what the check took the last time, or 0 when it was never made."""
        return (self.cell.seconds or {}).get(self.check, 0.0) if self.cell else 0.0


def plan_nightly(
    cells: Sequence[PlannedCell], settings: NightlySettings, now: datetime, project_key: str
) -> tuple[list[NightlyTask], list[NightlyResult]]:
    """Return the tasks in their order, and the results of the checks that are not made.

    `project_key` is the key of the checks of the whole project.
    """
    tasks = [
        NightlyTask(check=check, key=project_key)
        for check in (NightlyCheck.FILES, NightlyCheck.UPSTREAM, NightlyCheck.AUDIT)
    ]
    oldest_first = sorted(
        (cell for cell in cells if cell.recorded), key=lambda cell: (cell.rebuilt or "", cell.proven or "", cell.id)
    )
    share, others = oldest_first[: settings.share], oldest_first[settings.share :]
    tasks += [NightlyTask(check=NightlyCheck.REBUILD, cell=cell, key=cell.inputs) for cell in share]
    skipped = [_skipped_result(NightlyCheck.REBUILD, cell, f"last {cell.rebuilt or 'never'}") for cell in others]
    skipped += [
        _skipped_result(NightlyCheck.REBUILD, cell, "it has no image.json") for cell in cells if not cell.recorded
    ]
    for cell in sorted(cells, key=lambda cell: (cell.proven or "", cell.id)):
        if is_proof_valid(cell.proven, now, settings.expires):
            days = (now - datetime.fromisoformat(str(cell.proven))).days
            note = f"{days} d old, expires in {settings.expires - days}"
            skipped.append(_skipped_result(NightlyCheck.SUITE, cell, note, ResultState.PROVEN))
        else:
            tasks.append(NightlyTask(check=NightlyCheck.SUITE, cell=cell, key=cell.inputs))
    checks = settings.checks
    return [task for task in tasks if task.check in checks], [item for item in skipped if item.check in checks]


def _skipped_result(
    check: NightlyCheck, cell: PlannedCell, note: str, state: ResultState = ResultState.LEFT
) -> NightlyResult:
    return NightlyResult(check=check, subject=cell.id, key=cell.inputs, state=state, outcome=str(state), note=note)


def fits_budget(task: NightlyTask, spent: float, settings: NightlySettings) -> bool:
    """Return whether a task may begin after `spent` seconds; checks of the whole project always may."""
    if task.cell is None or settings.budget is None:
        return True
    return spent < settings.budget and spent + task.estimate <= settings.budget


def result_without_time(task: NightlyTask, settings: NightlySettings) -> NightlyResult:
    """Return the result of a cell's task that does not fit into the budget."""
    assert task.cell is not None  # noqa: S101  # only tasks of cells count against the budget
    return _skipped_result(task.check, task.cell, f"no time left of {(settings.budget or 0) / 60:g} min")


def list_unexamined_checks(results: Iterable[NightlyResult], settings: NightlySettings) -> list[NightlyResult]:
    """Return a result with a finding for each check of cells that looked at no cell at all, and found no proof."""
    unexamined = []
    for check in (NightlyCheck.REBUILD, NightlyCheck.SUITE):
        of_check = [result for result in results if result.check is check]
        if check not in settings.checks or not of_check or any(one.state is not ResultState.LEFT for one in of_check):
            continue
        notes = list(dict.fromkeys(result.note for result in of_check))
        reason = f"all {len(of_check)} cells were left ({'; '.join(notes[:3])})"
        finding = unexamined_finding(check, reason, NightlySeverity.UNKNOWN)
        unexamined.append(NightlyResult(check=check, outcome="not known", note=reason, findings=(finding,)))
    return unexamined


def is_proof_valid(proven: str | None, now: datetime, days: int) -> bool:
    """Return whether there is a proof and it is younger than this number of days."""
    return proven is not None and now - datetime.fromisoformat(proven) < timedelta(days=days)


def find_proof(  # noqa: PLR0913
    runs: Iterable[Evidence], image: str | None, node: Mapping[str, Any], suite: str, *, gpus: bool, quick: bool
) -> str | None:
    """Return when this very image last passed the suite with this hash on this node, or `None`.

    A run on a GPU also proves the CPU, and a full run also proves a quick one. Of an emulated image the suite's core is
    all that can run. A failed run takes back what older runs proved.
    """
    of_image = [
        run
        for run in runs
        if image is not None and run.image == image and run.node == node and run.where is not RunPlace.BARE
    ]
    passed = [
        run.when
        for run in valid_runs(of_image)
        if run.ok
        and run.suite == suite
        and (run.where is RunPlace.CONTAINER_GPU or not gpus)
        and (quick or not run.quick or run.where is RunPlace.CONTAINER_EMULATED)
    ]
    return max(passed, key=datetime.fromisoformat, default=None)


def find_last_rebuild(reports: Iterable[NightlyReport], cell: str, inputs: str) -> str | None:
    """Return the last date on which a build from nothing, of the same inputs, gave the recorded digest."""
    return max(
        (
            report.date
            for report in reports
            for result in report.results
            if (result.check, result.subject, result.key) == (NightlyCheck.REBUILD, cell, inputs)
            and result.state is ResultState.DONE
            and result.outcome in ("same", "flaky")
        ),
        default=None,
    )


def list_durations(reports: Sequence[NightlyReport], cell: str) -> dict[str, float]:
    """Return the seconds that each check of a cell took the last time, by the name of the check."""
    return {
        str(result.check): result.seconds
        for report in sorted(reports, key=lambda report: report.date)
        for result in report.results
        if result.subject == cell and result.state is ResultState.DONE
    }


def list_remaining_tasks(tasks: Iterable[NightlyTask], done: Mapping[str, NightlyResult]) -> list[NightlyTask]:
    """Return the tasks that an interrupted run has yet to do.

    These include tasks whose inputs have changed since, and tasks that got no answer.
    """
    remaining = []
    for task in tasks:
        result = done.get(task.name)
        if result is None or result.key != task.key or has_unanswered([result]):
            remaining.append(task)
    return remaining


def has_unanswered(results: Collection[NightlyResult]) -> bool:
    """Return whether a service did not answer, or this host lacks something for a check."""
    return any(finding.severity in ("unknown", "missing") for result in results for finding in result.findings)
