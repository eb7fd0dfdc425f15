"""Which wheel is wanted for which cell, and how it was come by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from knowngood.cell import Cell
from knowngood.compiling import recipe
from knowngood.compiling.record import Record
from knowngood.compiling.source import Sdist
from knowngood.errors import KnowngoodError
from knowngood.matrix import Matrix


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every compile of a run shares."""

    wheelhouse: Path
    memory_each: int = recipe.MEMORY
    """Bytes a job."""
    jobs: int | None = None
    renew: bool = False
    """Compile though there is a wheel, when it was made from other inputs or came without a record."""
    wheels: Path | None = None
    """A list of published wheels."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which package is wanted for which cell."""

    cell: Cell
    package: str
    version: str
    sdist: Sdist | None = None
    """From a file; else the registry's."""


def orders(cells: Sequence[Cell], matrix: Matrix) -> list[Order]:
    """The wheels that these cells need and no index has. Pure."""
    return [
        Order(cell=cell, package=package, version=version)
        for cell in cells
        for package, version in matrix.compiled(cell)
    ]


class Status(StrEnum):
    """Where the wheel came from."""

    PRESENT = "present"
    FETCHED = "fetched"
    COMPILED = "compiled"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A wheel, and how it was come by."""

    cell: str
    package: str
    version: str
    status: Status
    wheel: Path
    seconds: float
    record: Record | None
    note: str = ""

    def document(self) -> dict[str, Any]:
        """For `--json`."""
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


def failed(order: Order, error: KnowngoodError) -> dict[str, Any]:
    """The same of an order that no wheel came of."""
    return {
        "cell": str(order.cell),
        "package": order.package,
        "version": order.version,
        "status": "failed",
        "error": str(error),
        "exit": error.exit_code,
    }
