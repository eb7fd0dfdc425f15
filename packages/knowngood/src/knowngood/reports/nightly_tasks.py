"""Carries out the planned tasks of a nightly run one by one, and judges whose fault a failure is.

The checks themselves stand behind Protocols; the rest is pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from knowngood.core.errors import KnowngoodError, MissingError, UnknownError
from knowngood.core.notify import Notify
from knowngood.reports import nightly_plan
from knowngood.reports.nightly_report import NightlyCheck, NightlyFinding, NightlyResult, NightlySeverity, ResultState

TaskReporter = Callable[[str], AbstractContextManager[Notify]]
"""Takes the name of a task and reports its progress."""


class FaultDomain(StrEnum):
    """Whose fault a failure is."""

    NONE = "none"
    IMAGE = "image"
    HOST = "host"
    SUITE = "suite"


@dataclass(frozen=True, kw_only=True)
class CheckAttempt:
    """One attempt at a rebuild or at a suite."""

    domain: FaultDomain
    text: str
    data: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether the attempt succeeded."""
        return self.domain is FaultDomain.NONE


@dataclass(frozen=True, kw_only=True)
class AttemptVerdict:
    """The judgement of one attempt or of two."""

    outcome: str
    """`good`, `flaky`, or the domain of the fault."""
    domain: FaultDomain
    severity: NightlySeverity | None
    """`None` when there is nothing to report."""
    text: str


def needs_second_attempt(first: CheckAttempt) -> bool:
    """Return whether the check has to be repeated: an image is not blamed for a single failure."""
    return first.domain is FaultDomain.IMAGE


def judge_attempts(first: CheckAttempt, second: CheckAttempt | None = None) -> AttemptVerdict:
    """Decide whose fault the failures are; a check that fails once and then passes is flaky."""
    if first.ok:
        return AttemptVerdict(outcome="good", domain=FaultDomain.NONE, severity=None, text=first.text)
    if second is None or not needs_second_attempt(first):
        return _failed_verdict(first)
    if second.ok:
        text = f"flaky: failed ({first.text}), then passed without any change"
        return AttemptVerdict(outcome="flaky", domain=FaultDomain.IMAGE, severity=NightlySeverity.WARNING, text=text)
    if second.domain is FaultDomain.IMAGE:
        return _failed_verdict(second, ", twice")
    return _failed_verdict(second)


def _failed_verdict(attempt: CheckAttempt, suffix: str = "") -> AttemptVerdict:
    severity = NightlySeverity.MISSING if attempt.domain is FaultDomain.HOST else NightlySeverity.ERROR
    text = f"{attempt.domain}: {attempt.text}{suffix}"
    return AttemptVerdict(outcome=str(attempt.domain), domain=attempt.domain, severity=severity, text=text)


class ProjectCheck(Protocol):
    """A check of the whole project: files, upstream or audit."""

    def __call__(self, notify: Notify) -> NightlyResult:
        """Make the check; `KnowngoodError` when it cannot be made."""
        ...


class CellCheck(Protocol):
    """A check of one cell: its rebuild or its suite."""

    def __call__(self, cell: str, notify: Notify) -> CheckAttempt:
        """Make one attempt; every failure is in the attempt, none is raised."""
        ...


@dataclass(frozen=True, kw_only=True)
class NightlyChecks:
    """The functions that make the checks."""

    project: Mapping[NightlyCheck, ProjectCheck]
    rebuild: CellCheck
    suite: CellCheck
    explain: Callable[[str], NightlyFinding]
    """Returns what changed since the suite of a cell passed."""


@dataclass(frozen=True, kw_only=True)
class NightlyExecution:
    """The tasks of a nightly run, and everything that carrying them out needs."""

    tasks: Sequence[nightly_plan.NightlyTask]
    skipped: Sequence[NightlyResult]
    """The results of checks that are not made."""
    settings: nightly_plan.NightlySettings
    checks: NightlyChecks
    keep: Callable[[NightlyResult], None]
    """Called with each result as soon as it is there."""
    done: Mapping[str, NightlyResult] = field(default_factory=dict)
    """What an interrupted run of this date has finished, by the name of the task."""
    clock: Callable[[], float] = time.monotonic

    def run(self, reporter: TaskReporter) -> list[NightlyResult]:
        """Do all remaining tasks, and return all results ordered by check."""
        remaining = nightly_plan.list_remaining_tasks(self.tasks, self.done)
        spent = sum(item.seconds for item in self.done.values() if item.subject)
        results: dict[str, NightlyResult] = {item.task: item for item in self.skipped}
        for task in self.tasks:
            result = None if task in remaining else self.done[task.name]
            if result is None and not nightly_plan.fits_budget(task, spent, self.settings):
                result = nightly_plan.result_without_time(task, self.settings)
            if result is None:
                start = self.clock()
                with reporter(task.name) as notify:
                    result = self._do(task, notify)
                result = result.model_copy(update={"seconds": round(self.clock() - start, 1), "key": task.key})
                spent += result.seconds if task.cell else 0
                self.keep(result)
            results[result.task] = result
        all_results = [*results.values(), *nightly_plan.list_unexamined_checks(results.values(), self.settings)]
        return sorted(all_results, key=lambda item: list(NightlyCheck).index(item.check))

    def _do(self, task: nightly_plan.NightlyTask, notify: Notify) -> NightlyResult:
        if task.cell is not None:
            return self._check_cell(task.check, task.cell.id, notify)
        try:
            return self.checks.project[task.check](notify)
        except KnowngoodError as error:
            return result_from_error(task.check, error)

    def _check_cell(self, check: NightlyCheck, cell: str, notify: Notify) -> NightlyResult:
        attempt = self.checks.rebuild if check is NightlyCheck.REBUILD else self.checks.suite
        first = attempt(cell, notify)
        second = None
        if needs_second_attempt(first):
            notify(f"failed ({first.text}); trying once more")
            second = attempt(cell, notify)
        return self._judge(check, cell, first, second)

    def _judge(self, check: NightlyCheck, cell: str, first: CheckAttempt, second: CheckAttempt | None) -> NightlyResult:
        verdict = judge_attempts(first, second)
        data = dict((second or first).data or {})
        outcome = str(data.get("outcome", verdict.outcome)) if verdict.outcome == "good" else verdict.outcome
        findings = []
        if verdict.severity is not None:
            text = f"{cell}: {check}: {verdict.text}"
            findings.append(_finding(check, verdict.outcome, verdict.severity, cell, text))
        if "unexamined" in data:
            findings.append(_finding(check, outcome, NightlySeverity.UNKNOWN, cell, f"{cell}: {data['unexamined']}"))
        if verdict.severity is NightlySeverity.ERROR and verdict.domain is FaultDomain.IMAGE and data.get("evidence"):
            findings.append(self.checks.explain(cell))
        return NightlyResult(
            check=check,
            subject=cell,
            state=ResultState.DONE,
            outcome=outcome,
            note=verdict.text if verdict.severity is None else verdict.text.partition(": ")[2],
            findings=tuple(findings),
            data=data,
        )


def result_from_error(check: NightlyCheck, error: KnowngoodError) -> NightlyResult:
    """Return the result of a project check that could not be made: never good, and an error when an input is at fault.

    A service that did not answer leaves the result unknown; what this host lacks is missing.
    """
    severity, kind = NightlySeverity.ERROR, "unreadable"
    if isinstance(error, (UnknownError, MissingError)):
        severity = NightlySeverity.MISSING if isinstance(error, MissingError) else NightlySeverity.UNKNOWN
        kind = "unanswered"
    finding = _finding(check, kind, severity, str(check), f"{check}: {error}")
    return NightlyResult(check=check, outcome="not known", note=str(error), findings=(finding,))


def attempt_from_error(error: KnowngoodError) -> CheckAttempt:
    """Return the attempt that an exception ended: the host's fault when it lacks something, else the image's."""
    domain = FaultDomain.HOST if error.exit_code == 4 else FaultDomain.IMAGE
    return CheckAttempt(domain=domain, text=str(error))


def _finding(check: NightlyCheck, kind: str, severity: NightlySeverity, subject: str, text: str) -> NightlyFinding:
    return NightlyFinding(check=check, kind=kind, severity=severity, subject=subject, text=text, cells=(subject,))
