"""What `check` knows of packages that are added to a cell: rules, incidents, and uses of each other that break.

Pure, but for the tables that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from knowngood_facts.compat.broken_pairs import CALLS
from knowngood_facts.compat.check_answer import check_query
from knowngood_facts.compat.findings import Finding
from knowngood_facts.compat.query import Query, pinned_package
from knowngood_facts.compat.trainer_findings import TRAINER

if TYPE_CHECKING:
    from knowngood.launch.added_packages import AddedPackage
    from knowngood.lock.lock_tree import CellLock
    from knowngood_facts.compat.knowledge import CompatKnowledge


def examine_added_packages(
    known: CompatKnowledge, lock: CellLock, added: Sequence[AddedPackage]
) -> tuple[list[Finding], list[str]]:
    """Return what `check` finds about added packages in a cell, errors first, and which releases nobody has read.

    What concerns the cell's own packages alone is left out, what holds only under conditions that nobody stated, and
    that no cell is made for a trainer: the cell is chosen.
    """
    cell = lock.cell
    own = [(item.name, *item.version.partition("+")[::2]) for item in lock.distributions]
    packages = [pinned_package(name, version, local or None, explicit=False) for name, version, local in own]
    packages += [pinned_package(item.name, item.version) for item in added]
    query = Query(gpu=cell.gpu, axes={"python": cell.python}, packages=tuple(packages))
    universe = known.for_query(query)
    answer = check_query(universe, query, known.published, suggest=False)
    names = {item.name for item in added}
    concerned = [
        item
        for item in answer.findings
        if names & item.packages.keys() and not item.undecided and not item.id.startswith((TRAINER, CALLS))
    ]
    unread = []
    for item in added:
        table = universe.broken_uses(item.name)
        if table is not None and item.version not in table.releases:
            read = f"{table.releases[0]} to {table.releases[-1]}"
            unread.append(f"{item.name} {item.version}: nobody has looked at what it breaks, only at releases {read}")
    return sorted(concerned, key=lambda item: item.severity != "error"), unread


def check_added_packages(lock: CellLock, added: Sequence[AddedPackage]) -> tuple[list[Finding], list[str]]:
    """Return what `examine_added_packages` does, with all that is known; the extension `knowngood.check_packages`."""
    from knowngood_facts.compat import knowledge

    return examine_added_packages(knowledge.load_knowledge(refreshed=True), lock, added)
