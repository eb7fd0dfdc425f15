"""What a cell's runs prove of it, kept with the index. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from knowngood import evidence
from knowngood.evidence import Tier, Where
from knowngood.runs.observed import Figures, Observed, Run

if TYPE_CHECKING:
    import msgspec


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a cell stands by its runs."""

    proven: Tier = Tier.NONE
    """Without a look at its lock."""
    count: int = 0
    best: str | None = None
    """The file of the run that says most, of which `attention`, `reasons` and `figures` are."""
    attention: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Setting to what the first of its checks that decided the outcome says."""
    figures: Mapping[str, Figures] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def tier(self, *, locked: bool) -> Tier:
        """How far the cell is proven."""
        return Tier.RESOLVED if locked and self.proven is Tier.NONE else self.proven

    def text(self) -> str:
        """As the index keeps it."""
        return json.dumps(asdict(self))


def parse(text: str) -> Standing:
    """What `text` made."""
    return _decoder().decode(text)


def of(
    runs: Sequence[Run], left_out: Iterable[str], before: Standing, whole: Callable[[str], Observed | str]
) -> Standing:
    """From all runs of a cell; `whole` is asked for the file that says most unless that said most `before` too."""
    best = evidence.best(runs)
    reasons, figures = before.reasons, before.figures
    if best is None:
        reasons, figures = {}, {}
    elif best.file != before.best:
        shown = whole(best.file)
        reasons, figures = ({}, {}) if isinstance(shown, str) else (shown.reasons, shown.figures)
    return Standing(
        proven=evidence.tier(runs, locked=False),
        count=len(runs),
        best=best.file if best else None,
        attention=best.outcomes if best else {},
        reasons=reasons,
        figures=figures,
        left_out=tuple(left_out),
    )


def said(run: Run) -> str:
    """What a run said, without when and in which file: the same from night to night, so it is kept once."""
    return json.dumps({name: value for name, value in vars(run).items() if name not in ("file", "when")})


def heard(text: str, file: str, when: str) -> Run:
    """The run again."""
    kept = json.loads(text)
    return Run(file=file, when=when, **kept | {"where": Where(kept["where"])})


@cache
def _decoder() -> msgspec.json.Decoder[Standing]:
    """Of ten thousand standings, several times as fast as `json` and constructors."""
    import msgspec

    return msgspec.json.Decoder(Standing)
