"""How long images took to build from nothing, as the reports of nights have it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class BuildTimes:
    """The builds that were measured; there may be none."""

    seconds: tuple[float, ...] = ()
    """Of each build: fetching the wheels, making the layers, comparing digests; the base and the engine were there."""
    cores: tuple[int, ...] = ()
    """Of the machine of each build."""

    @property
    def minutes(self) -> tuple[int, int] | None:
        """The least and the most minutes that a build took; `None` where none was measured."""
        return (_minutes(min(self.seconds)), _minutes(max(self.seconds))) if self.seconds else None

    @property
    def text(self) -> str:
        """The minutes in words, with what they rest on."""
        if self.minutes is None:
            return "nobody measured how long it takes to build"
        times, cores = (" to ".join(map(str, sorted(set(pair)))) for pair in (self.minutes, _ends(self.cores)))
        return f"{times} minutes to build, by {len(self.seconds)} rebuilds on {cores} cores"


def read_build_times(evidence: Path) -> BuildTimes:
    """Return the times of the rebuilds in `evidence/nights/`; a report that cannot be read counts for nothing."""
    measured = list(_read_rebuilds(evidence / "nights"))
    return BuildTimes(seconds=tuple(seconds for seconds, _ in measured), cores=tuple(cores for _, cores in measured))


def _read_rebuilds(folder: Path) -> Iterator[tuple[float, int]]:
    for path in sorted(folder.rglob("*.json")):
        try:
            report: dict[str, Any] = json.loads(path.read_bytes())
            cores = int(report["node"]["cpus"])
            for result in report["results"]:
                if result["check"] == "rebuild" and result["outcome"] == "same":
                    yield float(result["seconds"]), cores
        except (OSError, ValueError, KeyError, TypeError):
            continue  # `nightly` names such a file


def _minutes(seconds: float) -> int:
    return max(1, math.ceil(seconds / 60))


def _ends(values: tuple[int, ...]) -> tuple[int, int]:
    return min(values), max(values)
