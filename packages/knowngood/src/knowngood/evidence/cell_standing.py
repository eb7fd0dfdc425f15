"""What the runs of a cell prove together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from knowngood.evidence import run_evidence
from knowngood.evidence.observed_run import RecordedRun, RunDetails, StepFigures
from knowngood.evidence.run_evidence import SettingObservation, Tier


@dataclass(frozen=True, kw_only=True)
class CellStanding:
    """What the runs of a cell prove: tier, attention outcomes, figures."""

    proven: Tier = Tier.NONE
    """The tier from runs alone; a lock is not looked at."""
    count: int = 0
    run: RecordedRun | None = None
    """The run that proves the most; `settings` and `figures` are taken from it."""
    settings: Mapping[str, SettingObservation] = field(default_factory=dict)
    """What that run observed of each attention setting."""
    figures: Mapping[str, StepFigures] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    unsigned: tuple[str, ...] = ()
    """The files of good runs that do not count, because the seal of the project does not cover them."""

    @property
    def best(self) -> str | None:
        """The file of the run that proves the most."""
        return self.run.file if self.run else None

    @property
    def attention(self) -> dict[str, str]:
        """The outcome of each attention setting in that run."""
        return {setting: observation.outcome for setting, observation in self.settings.items()}

    def tier(self, *, locked: bool, recorded: bool = False) -> Tier:
        """Return how far the cell is proven, when it has a lock or not, and a recorded image or not."""
        if self.proven is not Tier.NONE:
            return self.proven
        return Tier.BUILT if recorded else Tier.RESOLVED if locked else Tier.NONE


def standing_from_runs(details: Sequence[RunDetails], left_out: Iterable[str]) -> CellStanding:
    """Compute the standing of a cell from all its runs.

    `left_out` are the reasons of files that could not be used.
    """
    runs = [item.run for item in details]
    best = run_evidence.most_telling_run(runs)
    shown = next((item for item in details if item.run is best), None)
    return CellStanding(
        proven=run_evidence.proven_tier(runs, locked=False),
        count=len(runs),
        run=best,
        settings=shown.settings if shown else {},
        figures=shown.figures if shown else {},
        left_out=tuple(left_out),
    )
