"""Which cells have the trainers that a query names. Pure.

A trainer is the framework of a cell: of a stack, or of a cell of its own. Most trainers have no facts about GPUs, so
that no variable of the universe stands for them: their releases are compared here with what the query says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from knowngood.compat.query import PackageSpec
from knowngood.compat.value_domain import NONE, version_matches
from knowngood.core.cell import Cell


def find_wanted_trainers(packages: Iterable[PackageSpec], cells: Iterable[Cell]) -> dict[str, PackageSpec]:
    """Return the packages of a query that are the framework of one of these cells, by name."""
    names = {cell.framework_pin[0] for cell in cells if cell.framework_pin}
    return {item.name: item for item in packages if item.name in names and item.specifier != NONE}


def has_wanted_framework(cell: Cell, wanted: Mapping[str, PackageSpec]) -> bool:
    """Return whether a cell's framework is one of the wanted trainers, in a release that the query takes."""
    if cell.framework_pin is None:
        return False
    name, version = cell.framework_pin
    return name in wanted and takes_release(wanted[name], version)


def takes_release(package: PackageSpec, version: str) -> bool:
    """Return whether a package of a query may be this release; one without a specifier may be any."""
    return not package.specifier or version_matches(package.specifier, version)


def find_lock_conflict(packages: Sequence[PackageSpec], locked: Mapping[str, str]) -> str | None:
    """Return which package a locked cell has in another release than a query wants; `None` when there is none.

    Args:
        packages: the packages of the query.
        locked: the packages of the cell's lock, with their versions; empty for a cell without a lock.
    """
    for package in packages:
        version = locked.get(package.name, "").partition("+")[0]
        if version and not (package.specifier != NONE and takes_release(package, version)):
            return f"its lock has {package.name} {version}, and not {package.text}"
    return None
