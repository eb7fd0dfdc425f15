"""Reads the locks that the nightly checks of the whole project look at; a lock that cannot be read is a finding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.core.errors import KnowngoodError
from knowngood.registry import image_release
from knowngood.reports.nightly_report import NightlyCheck, NightlyFinding, NightlySeverity

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.lock.lock_tree import CellLock
    from knowngood.project.checkout import Project


@dataclass(frozen=True, kw_only=True)
class NightlyLocks:
    """The locks of some cells, and for each cell without a usable lock the reason."""

    locks: dict[Cell, CellLock] = field(default_factory=dict)
    defects: dict[Cell, str] = field(default_factory=dict)
    """Cell to the sentence that says why its lock cannot be used."""

    @property
    def cells(self) -> Sequence[Cell]:
        """The cells whose locks can be used."""
        return list(self.locks)

    @property
    def key(self) -> str:
        """A text that changes with every lock, and with every reason why one cannot be used."""
        states = {str(cell): lock.digest for cell, lock in self.locks.items()}
        states |= {str(cell): reason for cell, reason in self.defects.items()}
        return "\n".join(f"{cell} {state}" for cell, state in sorted(states.items()))

    def findings(self, check: NightlyCheck) -> list[NightlyFinding]:
        """Return an error for each lock that cannot be used: the check could not look at anything of its cell."""
        return [
            NightlyFinding(
                check=check,
                kind="lock-unreadable",
                severity=NightlySeverity.ERROR,
                subject=str(cell),
                text=reason if str(cell) in reason else f"{cell}: {reason}",
                cells=(str(cell),),
            )
            for cell, reason in self.defects.items()
        ]


def read_nightly_locks(here: Project, cells: Iterable[Cell]) -> NightlyLocks:
    """Read the committed locks of cells; a cell that was never locked, or whose lock is damaged, is a defect."""
    read = NightlyLocks()
    for cell in cells:
        try:
            read.locks[cell] = image_release.require_lock(here, cell)
        except KnowngoodError as error:
            read.defects[cell] = str(error)
    return read
