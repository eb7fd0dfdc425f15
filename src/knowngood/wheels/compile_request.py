"""What a compile is: the wheel that a cell needs, the plan, the place that carries it out, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.matrix import Matrix
from knowngood.core.notify import Notify
from knowngood.images import build_command
from knowngood.images.pipeline import Pipeline
from knowngood.lock import wheelhouse
from knowngood.lock.lock_tree import CellLock
from knowngood.lock.wheelhouse import WheelRecord
from knowngood.wheels import compile_recipe
from knowngood.wheels.source_archive import Sdist


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """The options that all compiles of a run share."""

    wheelhouse: Path
    memory_each: int = compile_recipe.MEMORY_PER_JOB
    """Memory for each job in bytes."""
    jobs: int | None = None
    renew: bool = False
    """Compile again when the present wheel was made from other inputs or has no record."""
    wheels: Path | None = None
    """A file that lists published wheels."""


@dataclass(frozen=True, kw_only=True)
class WheelRequest:
    """A wheel that a cell needs."""

    cell: Cell
    package: str
    version: str
    sdist: Sdist | None = None
    """The source archive when it comes from a file; otherwise it is fetched from the index."""


def needed_wheels(cells: Sequence[Cell], matrix: Matrix) -> list[WheelRequest]:
    """Return the wheels that these cells need and no index has. Pure."""
    return [
        WheelRequest(cell=cell, package=package, version=version)
        for cell in cells
        for package, version in matrix.compiled_packages(cell)
    ]


class WheelStatus(StrEnum):
    """How a wheel came into the wheelhouse."""

    PRESENT = "present"
    FETCHED = "fetched"
    COMPILED = "compiled"


@dataclass(frozen=True, kw_only=True)
class WheelResult:
    """A wheel in the wheelhouse, and how it came there."""

    cell: str
    package: str
    version: str
    status: WheelStatus
    wheel: Path
    seconds: float
    record: WheelRecord | None
    note: str = ""

    def document(self) -> dict[str, Any]:
        """Return the entry of `compile --json`."""
        return {
            "cell": self.cell,
            "package": self.package,
            "version": self.version,
            "status": str(self.status),
            "wheel": str(self.wheel),
            "seconds": round(self.seconds, 1),
            "note": self.note,
            "record": self.record.document() if self.record else None,
        }


def failed_wheel_document(order: WheelRequest, error: KnowngoodError) -> dict[str, Any]:
    """Return the entry of `compile --json` for a wheel that could not be made."""
    return {
        "cell": str(order.cell),
        "package": order.package,
        "version": order.version,
        "status": "failed",
        "error": str(error),
        "exit": error.exit_code,
    }


@dataclass(frozen=True, kw_only=True)
class CompileCapacity:
    """What a place offers for a compile."""

    processors: int
    memory: int
    """Free memory in bytes."""


@dataclass(frozen=True, kw_only=True)
class CompileHost:
    """The cell in whose image a wheel is compiled: it has the same torch, and no compiled wheel."""

    line: Pipeline
    """The pipeline that builds the image."""
    locked: CellLock
    plan: build_command.CellBuildPlan


@dataclass(frozen=True, kw_only=True)
class CompilePlan:
    """Everything that is decided before the compiler runs."""

    name: str
    """Name of the compile; one for each folder of objects, so that no two runs compile the same."""
    host: CompileHost
    sdist: Sdist
    work: Path
    """The build folder; its name is a hash of what shapes the objects."""
    toolkit: Path
    tools: Path
    env: Mapping[str, str]
    power: CompileCapacity
    jobs: int
    inputs: Mapping[str, Any]
    """Everything that shapes the wheel."""
    local: str
    notes: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return the hash of everything that shapes the wheel."""
        return wheelhouse.wheel_key(self.inputs)


@dataclass(frozen=True, kw_only=True)
class CompileOutcome:
    """How a compile ended, and the folder with what it left: `unpacked`, `attempt-N.json`, `log`."""

    folder: Path
    code: int
    out_of_memory: bool
    """Whether the engine reported it; `compile_inside` reports it for the processes that it started."""
    result: Mapping[str, Any]
    """What `compile_inside` wrote; empty when it was killed."""

    @property
    def log(self) -> Path:
        """Return the path of the compilers' output."""
        return self.folder / "log"


class CompilePlace(Protocol):
    """An engine or a builder that compiles wheels."""

    @property
    def name(self) -> str:
        """Return the name of the place, for the record of the wheel."""

    def power(self, cell: Cell, notify: Notify) -> CompileCapacity:
        """Return what it offers now for a wheel of this cell."""

    def compile(self, planned: CompilePlan, notify: Notify) -> CompileOutcome:
        """Compile to the end; finished objects are kept where they were made.

        Raises `MissingError` when the place goes away.
        """

    def command(self, planned: CompilePlan) -> list[str]:
        """Return the commands that `--dry-run` prints."""


def compile_variables(home: str, jobs: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the build. Pure."""
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
