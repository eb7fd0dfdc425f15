"""Makes the stored tables of broken uses fit the atlas: only pairs are judged of which one package changed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.data_files import read_data_bytes, read_data_text, write_compressed_text
from knowngood.core.local_files import write_atomically
from knowngood_facts.facts.atlas_lookup import (
    forget_opened_atlas,
    list_atlas_packages,
    list_owners,
    open_atlas,
)
from knowngood_facts.facts.broken_use_table import list_table_packages, read_broken_uses, table_path
from knowngood_facts.facts.broken_uses import compute_broken_uses, read_purposes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from knowngood_facts.facts.broken_use_table import BrokenUseTable

JUDGED_FILE = "judged.txt"
"""Says of which files the tables were made: a package and a digest in a line. Without it, all pairs are judged."""

_JUDGE_REVISION = 2
"""Raised when the same atlas gives other tables; then all pairs are judged again."""


def renew_broken_uses(folder: Path) -> list[str]:
    """Make the tables of a folder of the atlas fit its files, and return the packages whose tables changed.

    Only pairs are judged of which one file changed since; a package that changed is judged with all others.

    Raises:
        InputError: a file of the atlas, or a table, is damaged.
    """
    forget_opened_atlas()  # a harvest may have changed what was opened before
    states = _list_states(folder)
    due = _find_due_packages(states, folder)
    changed = []
    for package in states if due else ():
        table = compute_broken_uses(package, folder, None if package in due else due)
        if package not in due and (before := read_broken_uses(package, folder)) is not None:
            table = _keep_judged_uses(before, table, due)
        if table.uses and write_compressed_text(table_path(package, folder), table.render()):
            changed.append(package)
        if not table.uses and package in list_table_packages(folder):
            table_path(package, folder).unlink()
            changed.append(package)
    write_atomically(folder / JUDGED_FILE, "".join(f"{name} {state}\n" for name, state in states.items()))
    read_broken_uses.cache_clear()
    return changed


def _list_states(folder: Path) -> dict[str, str]:
    """Return package -> a digest of everything of its own that decides the tables."""
    purposes = read_purposes(folder)
    states = {}
    for package in list_atlas_packages(folder):
        own = f"{_JUDGE_REVISION} {','.join(purposes.get(package, ()))}\n".encode()
        states[package] = hashlib.sha256(own + read_data_bytes(folder / f"{package}.atlas")).hexdigest()
    return states


def _find_due_packages(states: Mapping[str, str], folder: Path) -> set[str]:
    """Return the packages that are not as they were judged, with those that have a top-level module in common."""
    path = folder / JUDGED_FILE
    judged = dict(line.split(" ", 1) for line in read_data_text(path).splitlines()) if path.exists() else {}
    if judged.keys() - states.keys():
        return set(states)
    due = {package for package, state in states.items() if judged.get(package) != state}
    roots = [atlas.file.root for package in due if (atlas := open_atlas(package, folder)) is not None]
    return due.union(*(list_owners(root, folder) for root in roots))


def _keep_judged_uses(before: BrokenUseTable, table: BrokenUseTable, due: Collection[str]) -> BrokenUseTable:
    """Return a table with what was known of the callees that were not judged now."""
    callees = {name: releases for name, releases in before.callees.items() if name not in due} | dict(table.callees)
    uses = {name: before.uses[name] for name in callees if name not in due} | dict(table.uses)
    return replace(table, callees={name: callees[name] for name in sorted(callees)}, uses=dict(sorted(uses.items())))
