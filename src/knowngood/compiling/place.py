"""Where a compile runs, and what it is told: on this machine's engine, or on a builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from knowngood.building import build
from knowngood.building.pipeline import Pipeline
from knowngood.cell import Cell
from knowngood.compiling import record
from knowngood.compiling.source import Sdist
from knowngood.locks.tree import CellLock

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Power:
    """What a place has for a compile."""

    processors: int
    memory: int
    """Bytes that are free."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The cell in whose image a wheel is compiled: it has the same torch, and nothing compiled."""

    line: Pipeline
    """Who builds the image."""
    locked: CellLock
    plan: build.Plan


@dataclass(frozen=True, kw_only=True)
class Planned:
    """All that is known before the compiler runs."""

    name: str
    """One for one folder of objects, so that no two compile the same."""
    host: Host
    sdist: Sdist
    work: Path
    """The build folder, named by what shapes objects."""
    toolkit: Path
    tools: Path
    env: Mapping[str, str]
    power: Power
    jobs: int
    inputs: Mapping[str, Any]
    """Everything that shapes the wheel."""
    local: str
    notes: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name of everything that shapes the wheel."""
        return record.key(self.inputs)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a compile ended, and where what it left is: `unpacked`, `attempt-N.json`, `log`."""

    folder: Path
    code: int
    out_of_memory: bool
    """As the engine saw it; `inside.py` sees it of the processes below it."""
    result: Mapping[str, Any]
    """What `inside.py` left, empty when it was killed."""

    @property
    def log(self) -> Path:
        """What the compilers said."""
        return self.folder / "log"


class Place(Protocol):
    """An engine or a builder that compiles."""

    @property
    def name(self) -> str:
        """For the record."""

    def power(self, cell: Cell, say: Say) -> Power:
        """What it has now, for a wheel of this cell."""

    def compile(self, planned: Planned, say: Say) -> Ended:
        """Compile until it ends; what is finished is kept where it was made.

        Raises `MissingError` when the place goes away.
        """

    def command(self, planned: Planned) -> list[str]:
        """What `--dry-run` prints."""


def environment(home: str, jobs: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of the build. Pure."""
    cuda = f"/toolkit/{home}"
    return {
        "CUDA_HOME": cuda,
        "PATH": f"{cuda}/bin:/tools/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": "/tools",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": "315532800",
        "MAX_JOBS": str(jobs),
        "HOME": "/tmp",  # noqa: S108  # in the container
        "LC_ALL": "C.UTF-8",
        **extra,
    }
