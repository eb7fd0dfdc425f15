"""What a nightly says: findings, the results of its checks, the report of a date. Pure; the schema of the JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "knowngood/nightly/1"


class Check(StrEnum):
    """What is asked, in the order in which it is told."""

    FILES = "files"
    """Is every locked file still there, not withdrawn, with the same hash."""
    UPSTREAM = "upstream"
    """What is new on every axis, what it meets, and which cells could be made of it."""
    AUDIT = "audit"
    """Which vulnerabilities are known."""
    REBUILD = "rebuild"
    """Does a cell built again from nothing give the recorded digest."""
    SUITE = "suite"
    """Does a cell's image still pass its suite."""


class Severity(StrEnum):
    """How bad a finding is, worst first."""

    ERROR = "error"
    MISSING = "missing"
    """This host lacks something: it is not known whether what is published is good."""
    UNKNOWN = "unknown"
    """A service did not answer."""
    WARNING = "warning"
    INFO = "info"

    @property
    def exit_code(self) -> int:
        """What the command returns for it."""
        return {"error": 1, "missing": 4, "unknown": 3}.get(self.value, 0)


class State(StrEnum):
    """What became of a check."""

    DONE = "done"
    PROVEN = "proven"
    """Not done: it is proven already, and that has not expired."""
    LEFT = "left"
    """Not done: the share or the time of this night went to others."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Finding(_Frozen):
    """One thing that a maintainer should know."""

    check: Check
    kind: str
    severity: Severity
    subject: str
    """What it is about: a file, a cell, a release, a vulnerability."""
    text: str
    cells: tuple[str, ...] = ()
    since: str = ""
    """The date of the first report that had it without a break."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The same finding on another night has the same."""
        return (self.check, self.kind, self.subject)


class Result(_Frozen):
    """What became of one check of one subject."""

    check: Check
    subject: str = ""
    """The cell, of a check that is of one."""
    key: str = ""
    """What the result follows from; another key, another result."""
    state: State = State.DONE
    outcome: str
    """A word or two: `same`, `good`, `flaky`, `2 gone`."""
    note: str = ""
    seconds: float = 0
    findings: tuple[Finding, ...] = ()
    data: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def task(self) -> str:
        """Its name in the state."""
        return task(self.check, self.subject)


class Report(_Frozen):
    """A night."""

    schema_: str = Field(default=SCHEMA, alias="schema")
    date: str
    started: str
    finished: str
    node: Mapping[str, Any]
    revision: str | None
    """The commit of the checkout."""
    cells: tuple[str, ...]
    settings: Mapping[str, Any]
    results: tuple[Result, ...]
    exit: int
    notes: tuple[str, ...] = ()
    """Files of evidence and reports that could not be used, cells that stand in for others, what was covered."""

    @property
    def findings(self) -> list[Finding]:
        """All of them, the worst first."""
        return ordered(finding for result in self.results for finding in result.findings)

    def text(self) -> str:
        """The file."""
        return self.model_dump_json(indent=1, by_alias=True) + "\n"


def task(check: Check, subject: str) -> str:
    """The name of a task."""
    return f"{check}:{subject}" if subject else str(check)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, new before old."""
    ranks, checks = list(Severity), list(Check)
    found = sorted(findings, key=lambda item: item.since, reverse=True)
    return sorted(found, key=lambda item: (ranks.index(item.severity), checks.index(item.check)))


def exit_code(findings: Iterable[Finding]) -> int:
    """By the worst finding."""
    worst = ordered(findings)
    return worst[0].severity.exit_code if worst else 0
