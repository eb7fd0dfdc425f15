"""A night: the plan carried out, one check after the other, each kept when it is finished.

What is asked of the world stands behind Protocols; the rest is pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from knowngood.errors import KnowngoodError, MissingError, UnknownError
from knowngood.nightly import blame, plan
from knowngood.nightly.blame import Attempt, Domain
from knowngood.nightly.model import Check, Finding, Result, Severity, State

Say = Callable[[str], None]
Reporter = Callable[[str], AbstractContextManager[Say]]
"""Of a task's name."""


class Wide(Protocol):
    """A check of no one cell: files, upstream, audit."""

    def __call__(self, say: Say) -> Result:
        """The result; `KnowngoodError` where it could not be had."""
        ...


class Try(Protocol):
    """One try of a cell's rebuild or suite."""

    def __call__(self, cell: str, say: Say, *, elsewhere: bool) -> Attempt:
        """Try here, or on the other engine; whatever goes wrong is in the attempt."""
        ...


class Explain(Protocol):
    """Why a cell's suite, green before, is red: the bisection."""

    def __call__(self, cell: str, red: Attempt, say: Say) -> list[Finding]:
        """What was found; nothing where there is nothing to compare with."""
        ...


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Who does the checks."""

    wide: Mapping[Check, Wide]
    rebuild: Try
    suite: Try
    explain: Explain
    elsewhere: bool = False
    """There is another engine for a second try."""


@dataclass(frozen=True, kw_only=True)
class Night:
    """What to do and with whom."""

    tasks: Sequence[plan.Task]
    left: Sequence[Result]
    settings: plan.Settings
    crew: Crew
    keep: Callable[[Result], None]
    done: Mapping[str, Result] = field(default_factory=dict)
    """What a run of this date has finished."""
    clock: Callable[[], float] = time.monotonic

    def run(self, reporter: Reporter) -> list[Result]:
        """All results, in the order of the plan."""
        todo = plan.remaining(self.tasks, self.done)
        spent = sum(item.seconds for item in self.done.values() if item.subject)
        found: dict[str, Result] = {item.task: item for item in self.left}
        for task in self.tasks:
            known = None if task in todo else self.done[_name(task)]
            if known is None and not plan.fits(task, spent, self.settings):
                known = plan.no_time(task, self.settings)
            if known is None:
                begun = self.clock()
                with reporter(_name(task)) as say:
                    known = self._do(task, say)
                known = known.model_copy(update={"seconds": round(self.clock() - begun, 1), "key": task.key})
                spent += known.seconds if task.cell else 0
                self.keep(known)
            found[known.task] = known
        return sorted(found.values(), key=lambda item: list(Check).index(item.check))

    def _do(self, task: plan.Task, say: Say) -> Result:
        if task.cell is not None:
            return self._cell(task.check, task.cell.id, say)
        try:
            return self.crew.wide[task.check](say)
        except KnowngoodError as error:
            return unanswered(task.check, error)

    def _cell(self, check: Check, cell: str, say: Say) -> Result:
        attempt = self.crew.rebuild if check is Check.REBUILD else self.crew.suite
        first = attempt(cell, say, elsewhere=False)
        second = None
        if blame.again(first):
            say(f"red ({first.text}); once more{' elsewhere' if self.crew.elsewhere else ''}")
            second = attempt(cell, say, elsewhere=self.crew.elsewhere)
        return self._judged(check, cell, first, second, say)

    def _judged(self, check: Check, cell: str, first: Attempt, second: Attempt | None, say: Say) -> Result:
        verdict = blame.judge(first, second)
        data = dict((second or first).data or {})
        outcome = str(data.get("outcome", verdict.outcome)) if verdict.outcome == "good" else verdict.outcome
        findings = []
        if verdict.severity is not None:
            said = f"{cell}: {check}: {verdict.text}"
            findings.append(_finding(check, verdict.outcome, verdict.severity, cell, said))
        if "warning" in data:
            findings.append(_finding(check, outcome, Severity.WARNING, cell, f"{cell}: {data['warning']}"))
        red = second or first
        if verdict.severity is Severity.ERROR and verdict.domain is Domain.IMAGE and (red.data or {}).get("evidence"):
            findings += self._explained(cell, red, say)
        note = verdict.text if verdict.severity is None else verdict.text.partition(": ")[2]
        return Result(
            check=check, subject=cell, state=State.DONE, outcome=outcome, note=note, findings=tuple(findings), data=data
        )

    def _explained(self, cell: str, red: Attempt, say: Say) -> list[Finding]:
        try:
            return self.crew.explain(cell, red, say)
        except KnowngoodError as error:
            said = f"{cell}: what changed since it was green could not be searched: {error}"
            return [_finding(Check.SUITE, "not-bisected", Severity.WARNING, cell, said)]


def unanswered(check: Check, error: KnowngoodError) -> Result:
    """The result of a check that could not be made: unknown, never good."""
    asked = isinstance(error, UnknownError) or not isinstance(error, MissingError)
    severity = Severity.UNKNOWN if asked else Severity.MISSING
    finding = _finding(check, "unanswered", severity, str(check), f"{check}: {error}")
    return Result(check=check, outcome="not known", note=str(error), findings=(finding,))


def failed(error: KnowngoodError, where: str = "here") -> Attempt:
    """The attempt that ended in an exception: the host's fault when something is missing, else the image's."""
    domain = Domain.HOST if error.exit_code == 4 else Domain.IMAGE
    return Attempt(domain=domain, text=str(error), where=where)


def _name(task: plan.Task) -> str:
    from knowngood.nightly.model import task as named

    return named(task.check, task.cell.id if task.cell else "")


def _finding(check: Check, kind: str, severity: Severity, subject: str, text: str) -> Finding:
    return Finding(check=check, kind=kind, severity=severity, subject=subject, text=text, cells=(subject,))
