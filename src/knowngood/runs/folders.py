"""What lies in a folder of evidence, what of it is new, and what that says."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from knowngood import workers
from knowngood.runs import observed
from knowngood.runs.observed import Observed

MANY = 200
"""New files from which on other processes are worth their start."""
_SETTLED = 2_000_000_000
"""Nanoseconds: a folder that changed less long ago may change again without another time."""
Files = Mapping[bytes, tuple[int, int]]
"""Of a cell: name to size and time."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is to be read of a cell, and what is gone."""

    name: bytes
    changed: int
    new: Files
    gone: tuple[bytes, ...]


Read = tuple[Look, list[tuple[bytes, Observed | str]]]
"""A cell with what its new files say, or why they are left out."""


def look(name: bytes, place: bytes, changed: int, known: Files) -> Look:
    """Compare a cell's folder, whose time was `changed` before this, with what is known of it."""
    settled = abs(time.time_ns() - changed) > _SETTLED
    with os.scandir(place) as entries:
        files = {
            entry.name: (state.st_size, state.st_mtime_ns)
            for entry in entries
            if entry.name.endswith(b".json") and not entry.name.startswith(b".")
            for state in [entry.stat()]
        }
    new = {file: state for file, state in files.items() if known.get(file) != state}
    gone = tuple(file for file in known if file not in files)
    return Look(name=name, changed=changed if settled else 0, new=new, gone=gone)


def cells(folder: Path) -> list[bytes]:
    """The folders of cells; incidents have reproductions, not runs of the suite."""
    try:
        with os.scandir(os.fsencode(folder)) as entries:
            return sorted(item.name for item in entries if item.is_dir() and item.name != b"incidents")
    except FileNotFoundError:
        return []


def read(folder: Path, looks: Iterable[Look], count: int) -> Iterator[Read]:
    one = partial(_read, folder)
    if count < MANY:
        yield from map(one, looks)
    else:
        with workers.pool() as pool:
            yield from pool.map(one, looks, chunksize=8)


def _read(folder: Path, look: Look) -> Read:
    place = folder / os.fsdecode(look.name)
    return look, [(file, observed.load(place / os.fsdecode(file))) for file in look.new]
