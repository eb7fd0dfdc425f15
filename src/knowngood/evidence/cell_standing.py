"""What the runs of a cell prove together, in the form that the index keeps. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from knowngood.evidence import run_evidence
from knowngood.evidence.observed_run import RecordedRun, RunDetails, StepFigures
from knowngood.evidence.run_evidence import RunPlace, SettingObservation, Tier


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

    def text(self) -> str:
        """Return this as JSON, as the index keeps it."""
        return json.dumps(asdict(self))


def parse_standing(text: str) -> CellStanding:
    """Read what `CellStanding.text` wrote."""
    stored = json.loads(text)
    run = stored["run"]
    return CellStanding(
        proven=Tier(stored["proven"]),
        count=stored["count"],
        run=RecordedRun(**run | {"where": RunPlace(run["where"])}) if run else None,
        settings={name: _parse_observation(item) for name, item in stored["settings"].items()},
        figures={name: StepFigures(**item) for name, item in stored["figures"].items()},
        left_out=tuple(stored["left_out"]),
    )


def _parse_observation(stored: Mapping[str, Any]) -> SettingObservation:
    limits, defects = tuple(stored["limits"]), tuple(stored["defects"])
    return SettingObservation(outcome=stored["outcome"], message=stored["message"], limits=limits, defects=defects)


def standing_from_runs(
    runs: Sequence[RecordedRun],
    left_out: Iterable[str],
    before: CellStanding,
    load_details: Callable[[str], RunDetails | str],
) -> CellStanding:
    """Compute the standing of a cell from all its runs.

    `load_details` reads the file of the run that proves the most; it is called only when that is not the run of
    `before`. `left_out` are the reasons of files that could not be used.
    """
    best = run_evidence.most_telling_run(runs)
    settings, figures = before.settings, before.figures
    if best is None:
        settings, figures = {}, {}
    elif best.file != before.best:
        details = load_details(best.file)
        settings, figures = ({}, {}) if isinstance(details, str) else (details.settings, details.figures)
    return CellStanding(
        proven=run_evidence.proven_tier(runs, locked=False),
        count=len(runs),
        run=best,
        settings=settings,
        figures=figures,
        left_out=tuple(left_out),
    )


def summary_text(run: RecordedRun) -> str:
    """Return a run as JSON without its time and file; equal runs of many nights have the same text, stored once."""
    return json.dumps({name: value for name, value in vars(run).items() if name not in ("file", "when")})


def run_from_summary(text: str, file: str, when: str) -> RecordedRun:
    """Rebuild a run from its row in the index."""
    summary = json.loads(text)
    return RecordedRun(file=file, when=when, **summary | {"where": RunPlace(summary["where"])})
