"""Makes the tables of broken uses again, from the atlas of all packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.core.data_files import write_compressed_text
from knowngood.facts.atlas_lookup import AtlasLookup, find_owner, list_atlas_packages, list_owners, open_atlas
from knowngood.facts.broken_use_table import BrokenUseTable, list_table_packages, table_path
from knowngood.facts.broken_uses import find_broken_uses

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


def renew_broken_uses(folder: Path) -> list[str]:
    """Compute the tables of all packages in a folder of the atlas, and return those that changed.

    Raises:
        InputError: a file of the atlas is damaged.
    """
    changed = []
    for package in list_atlas_packages(folder):
        table = compute_broken_uses(package, folder)
        if table.uses and write_compressed_text(table_path(package, folder), table.render()):
            changed.append(package)
        if not table.uses and package in list_table_packages(folder):
            table_path(package, folder).unlink()
            changed.append(package)
    return changed


def compute_broken_uses(package: str, folder: Path, among: Collection[str] | None = None) -> BrokenUseTable:
    """Compute the table of one package of the atlas, which takes seconds.

    Args:
        package: the package that uses others.
        folder: the atlas.
        among: the packages whose use is judged; None for all.

    Raises:
        FileNotFoundError: the atlas does not have the package.
        InputError: a file of the atlas is damaged.
    """
    caller = open_atlas(package, folder)
    if caller is None:
        raise FileNotFoundError(folder / f"{package}.atlas")
    callees: dict[str, AtlasLookup] = {}

    def open_module(module: str) -> AtlasLookup | None:
        name = find_owner(module, folder)
        callee = open_atlas(name, folder) if name and (among is None or name in among) else None
        if callee is not None:
            callees[callee.file.package] = callee
        return callee

    def is_shared(module: str) -> bool:
        others = list_owners(module.partition(".")[0], folder)[1:]
        return any(other.file.rows(module) for name in others if (other := open_atlas(name, folder)) is not None)

    uses = find_broken_uses(caller, open_module, is_shared)
    return BrokenUseTable(
        package=package,
        releases=caller.file.releases,
        callees={name: callees[name].file.releases for name in uses},
        uses=uses,
    )
