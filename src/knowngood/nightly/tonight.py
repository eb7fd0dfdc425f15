"""A night that can begin: what was asked for, and how it is carried out and reported. Edge."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood import paths, smoke
from knowngood.nightly import plan, since, state
from knowngood.nightly.model import Check, Report, Result, exit_code
from knowngood.nightly.night import Crew, Night, Reporter
from knowngood.publishing import release

if TYPE_CHECKING:
    from knowngood.cell import Cell
    from knowngood.project import Project


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says."""

    words: tuple[str, ...]
    folder: Path
    checks: frozenset[str]
    share: int
    budget: int | None
    """Minutes."""
    expires: int
    pairwise: bool
    elsewhere: str | None
    bisect: bool
    tracker: str | None
    wheelhouse: str | None
    suite: smoke.Options

    def settings(self) -> plan.Settings:
        """For the plan."""
        return plan.Settings(
            checks=frozenset(map(Check, self.checks)),
            share=self.share,
            budget=None if self.budget is None else self.budget * 60.0,
            expires=self.expires,
        )

    def document(self) -> dict[str, Any]:
        """For the report."""
        return {
            "checks": [str(check) for check in Check if check in self.checks],
            "share": self.share,
            "budget_minutes": self.budget,
            "expires_days": self.expires,
            "pairwise": self.pairwise,
            "elsewhere": self.elsewhere,
            "quick": self.suite.quick,
            "gpus": self.suite.gpus,
        }


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A night that can begin."""

    here: Project
    asked: Asked
    now: datetime
    cells: Sequence[Cell]
    tasks: Sequence[plan.Task]
    left: Sequence[Result]
    settings: plan.Settings
    crew: Crew
    node: Mapping[str, Any]
    last: Report | None
    notes: Sequence[str]

    @property
    def date(self) -> str:
        """Of the report, UTC."""
        return self.now.date().isoformat()

    def commands(self) -> list[str]:
        """What each task is, as a command of its own."""
        chosen = shlex.join(self.asked.words)
        alone = {
            Check.FILES: f"knowngood nightly --only files {chosen}",
            Check.UPSTREAM: "knowngood harvest && knowngood harvest --contracts",
            Check.AUDIT: f"knowngood audit {chosen}",
        }
        verbs = {Check.REBUILD: "verify", Check.SUITE: "smoke"}
        return [
            alone[task.check].strip() if task.cell is None else f"knowngood {verbs[task.check]} '{task.cell.id}'"
            for task in self.tasks
        ]

    def run(self, reporter: Reporter) -> Report:
        """Everything that is not finished yet of this date; another run of the same folder is waited for."""
        with paths.locked(self.asked.folder):
            progress = state.Progress(self.asked.folder, self.date)
            begun = progress.started or self.now.isoformat(timespec="seconds")
            night = Night(
                tasks=self.tasks,
                left=self.left,
                settings=self.settings,
                crew=self.crew,
                keep=lambda result: progress.keep(result, begun),
                done=progress.done,
            )
            results = [since.dated(result, self.last, self.date) for result in night.run(reporter)]
        return Report(
            schema="knowngood/nightly/1",
            date=self.date,
            started=begun,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            node=dict(self.node),
            revision=_revision(self.here),
            cells=tuple(map(str, self.cells)),
            settings=self.asked.document(),
            results=tuple(results),
            exit=exit_code(finding for result in results for finding in result.findings),
            notes=tuple(self.notes),
        )


def _revision(here: Project) -> str | None:
    found = release.source(here.root)
    return found.commit if found else None
