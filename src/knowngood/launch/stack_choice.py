"""The cell of a stack in the place of the cell below it, when somebody wants its trainer. Pure, but for the locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.core.matrix import Matrix
    from knowngood.lock.lock_tree import LockTree


def find_stack_cell(matrix: Matrix, tree: LockTree, cell: Cell, wanted: Sequence[str]) -> Cell | None:
    """Return the cell of the newest stack on `cell` whose trainer one of the requirements `wanted` asks for.

    `None` when no locked cell of matrix.yaml is such a one. A text that is no requirement asks for none.
    """
    requirements = {canonicalize_name(item.name): item for item in map(_parse_requirement, wanted) if item}
    fitting = []
    for entry in matrix.entries.values():
        pin = entry.cell.framework_pin
        if pin is None or entry.below != cell:
            continue
        name, version = pin
        requirement = requirements.get(canonicalize_name(name))
        if requirement and requirement.specifier.contains(version, prereleases=True) and tree.load(entry.cell):
            fitting.append((Version(version), entry.cell))
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def _parse_requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None
