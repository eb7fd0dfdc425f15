"""The index of a folder of evidence: what lists, tiers, histories and pages need, without opening every file again.

The index is an SQLite file in the cache folder. It is derived data: it is made anew when it is missing, damaged, or
written by another version of this program. A cell's folder is read again when its modification time has changed, as it
does when a file is added or removed. Up to 20,000 runs, the time and size of every file are compared too. For a million
runs that would take seconds, so a file that is edited in place is then noticed only when it is opened (its name holds
its digest), not in a list.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from knowngood.core.local_files import cache_folder
from knowngood.core.notify import Notify, ignore_notes
from knowngood.evidence import sealed_files
from knowngood.evidence.cell_standing import (
    CellStanding,
    parse_standing,
    run_from_summary,
    standing_from_runs,
    summary_text,
)
from knowngood.evidence.observed_run import RecordedRun, RunDetails, load_run_details, printable_name

FILES_WORTH_PROCESSES = 200
"""The number of new files from which on other processes are worth their start."""
_SETTLED = 2_000_000_000
"""Nanoseconds: a folder that changed more recently may change again without getting another modification time."""
_OTHER_RUNS = (b"incidents", b"models")
"""The folders beside those of cells: runs of reproductions, and of the model suite."""
FileStates = Mapping[bytes, tuple[int, int]]
"""The files of a cell: name -> (size in bytes, modification time in nanoseconds)."""


@dataclass(frozen=True, kw_only=True)
class FolderChanges:
    """Which files of a cell's folder must be read, and which are gone."""

    name: bytes
    changed: int
    new: FileStates
    gone: tuple[bytes, ...]


ReadFolder = tuple[FolderChanges, list[tuple[bytes, RunDetails | str]]]
"""The changes of a cell's folder, with the content of each new file or the reason why it is left out."""


def compare_folder(name: bytes, place: bytes, changed: int, known: FileStates) -> FolderChanges:
    """Compare a cell's folder with the files in the index; `changed` is its modification time, read before this."""
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
    return FolderChanges(name=name, changed=changed if settled else 0, new=new, gone=gone)


def list_cell_folders(folder: Path) -> list[bytes]:
    """Return the names of the cells' folders; `incidents` and `models` hold runs of another kind."""
    try:
        with os.scandir(os.fsencode(folder)) as entries:
            return sorted(item.name for item in entries if item.is_dir() and item.name not in _OTHER_RUNS)
    except FileNotFoundError:
        return []


def read_changes(folder: Path, changes: Iterable[FolderChanges], count: int) -> Iterator[ReadFolder]:
    """Read the new files of cells; `count` is the number of files, which decides whether other processes help."""
    read_folder = partial(_read_folder, folder)
    if count < FILES_WORTH_PROCESSES:
        yield from map(read_folder, changes)
    else:
        from knowngood.core import worker_pool

        with worker_pool.process_pool() as pool:
            yield from pool.map(read_folder, changes, chunksize=8)


def _read_folder(folder: Path, changes: FolderChanges) -> ReadFolder:
    place = folder / os.fsdecode(changes.name)
    return changes, [(file, load_run_details(place / os.fsdecode(file))) for file in changes.new]


RUNS_CHECKED_ONE_BY_ONE = 20_000
"""Up to this number of runs the time and size of every file are compared."""
_CELLS_A_TRANSACTION = 100
"""Cells that are written in one transaction; after a kill the next run goes on behind them."""
_TABLES = {
    "origin": "(digest TEXT)",
    "cells": "(id INTEGER PRIMARY KEY, name BLOB UNIQUE, changed INTEGER, files INTEGER, standing TEXT)",
    "summaries": "(id BLOB PRIMARY KEY, text TEXT) WITHOUT ROWID",
    "runs": "(cell INTEGER, file BLOB, size INTEGER, changed INTEGER, time TEXT, summary BLOB, left_out TEXT,"
    " PRIMARY KEY(cell, file)) WITHOUT ROWID",
}
_T = TypeVar("_T")


def query_index(folder: Path, question: Callable[[RunIndex], _T], notify: Notify = ignore_notes) -> _T:
    """Bring the index up to date and return `question(index)`.

    Where the cache folder cannot be used, the index is made in memory.
    """
    answer = partial(_answer, folder, question, notify)
    name = hashlib.sha256(f"{platform.node()} {folder.resolve()}".encode()).hexdigest()[:32]
    # One for each machine: SQLite's locks do not work in a home folder that machines share.
    place = cache_folder() / "runs" / f"{name}.sqlite"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            return answer(place)
        except sqlite3.OperationalError:  # the disk is full or read-only, or another process held it for a minute
            raise
        except sqlite3.DatabaseError:  # damaged
            for suffix in ("", "-wal", "-shm"):
                place.with_name(place.name + suffix).unlink(missing_ok=True)
            return answer(place)
    except (sqlite3.Error, OSError):
        return answer(":memory:")


def _answer(folder: Path, question: Callable[[RunIndex], _T], notify: Notify, place: Path | str) -> _T:
    with closing(sqlite3.connect(place, timeout=60, isolation_level=None)) as database:
        index = RunIndex(folder, database)
        index.refresh(notify)
        return question(index)


class RunIndex:
    """The open index of one folder of evidence."""

    def __init__(self, folder: Path, database: sqlite3.Connection) -> None:
        self.folder, self._database = folder, database
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        origin = _origin(folder)
        if not self._has_origin(origin):
            with self._transaction():
                if not self._has_origin(origin):  # another process may have been first
                    self._create_tables(origin)

    def standings(self) -> dict[str, CellStanding]:
        """Return what the runs of each cell prove, for every cell that has runs."""
        rows = self._database.execute("SELECT name, standing FROM cells ORDER BY name")
        return {os.fsdecode(name): parse_standing(text) for name, text in rows}

    def covered_standings(self, covers: Callable[[str], bool]) -> dict[str, CellStanding]:
        """Return what `standings` does, from the runs whose file is covered; a red run counts in any case."""
        standings = self.standings()
        for cell, standing in standings.items():
            runs = self.runs(cell)
            unsigned = tuple(run.file for run in runs if run.ok and not covers(run.file))
            if unsigned:
                standings[cell] = replace(
                    standing_from_runs(
                        [run for run in runs if run.file not in unsigned],
                        standing.left_out,
                        standing,
                        lambda file: load_run_details(self.folder / file),
                    ),
                    unsigned=unsigned,
                )
        return standings

    def runs(self, cell: str, newest: int = -1) -> list[RecordedRun]:
        """Return the runs of a cell, or only the `newest` of them by the time in their names; oldest first."""
        rows = self._database.execute(
            "SELECT file, time, text FROM runs JOIN summaries ON summary = id"
            " WHERE cell = (SELECT id FROM cells WHERE name = ?) ORDER BY file DESC LIMIT ?",
            (os.fsencode(cell), newest),
        )
        runs = [run_from_summary(text, _label(cell, file), when) for file, when, text in rows]
        return sorted(runs, key=lambda run: (run.when, run.file))

    def refresh(self, notify: Notify) -> None:
        """Read the files that are new or changed, and forget those that are gone."""
        changes, gone = self._changes()
        count = sum(len(folder.new) for folder in changes)
        if count > RUNS_CHECKED_ONE_BY_ONE:
            notify(f"reading {count} new runs; their index stays in the cache folder")
        pending: list[ReadFolder] = []
        for read_folder in read_changes(self.folder, changes, count):
            pending.append(read_folder)
            if len(pending) == _CELLS_A_TRANSACTION:
                self._write_cells(pending)
                pending.clear()
        if pending or gone:
            self._write_cells(pending, gone)

    def _has_origin(self, origin: str) -> bool:
        tables = self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'origin'").fetchall()
        return bool(tables) and self._database.execute("SELECT digest FROM origin").fetchall() == [(origin,)]

    def _create_tables(self, origin: str) -> None:
        for name, columns in _TABLES.items():
            self._database.execute(f"DROP TABLE IF EXISTS {name}")
            self._database.execute(f"CREATE TABLE {name}{columns}")
        self._database.execute("INSERT INTO origin VALUES (?)", (origin,))

    def _changes(self) -> tuple[list[FolderChanges], list[bytes]]:
        """Return the cells that may have changed, and those that are gone."""
        known = dict(self._database.execute("SELECT name, changed FROM cells").fetchall())
        (count,) = self._database.execute("SELECT coalesce(sum(files), 0) FROM cells").fetchone()
        names, changes = set(), []
        for name in list_cell_folders(self.folder):
            names.add(name)
            place = os.path.join(os.fsencode(self.folder), name)  # noqa: PTH118 - bytes, ten thousand of them
            changed = os.stat(place).st_mtime_ns  # noqa: PTH116
            if count > RUNS_CHECKED_ONE_BY_ONE and known.get(name) == changed:
                continue
            folder = compare_folder(name, place, changed, self._files(name))
            if folder.new or folder.gone or known.get(name) != folder.changed:
                changes.append(folder)
        return changes, [name for name in known if name not in names]

    def _files(self, name: bytes) -> dict[bytes, tuple[int, int]]:
        rows = self._database.execute(
            "SELECT file, runs.size, runs.changed FROM runs JOIN cells ON cell = id WHERE name = ?", (name,)
        )
        return {file: (size, changed) for file, size, changed in rows}

    def _write_cells(self, folders: Iterable[ReadFolder], gone: Iterable[bytes] = ()) -> None:
        with self._transaction():
            for name in gone:
                self._database.execute("DELETE FROM runs WHERE cell = (SELECT id FROM cells WHERE name = ?)", (name,))
                self._database.execute("DELETE FROM cells WHERE name = ?", (name,))
            for changes, files in folders:
                self._write_cell(changes, dict(files))

    def _write_cell(self, changes: FolderChanges, files: Mapping[bytes, RunDetails | str]) -> None:
        write = self._database.execute
        write("INSERT OR IGNORE INTO cells(name, changed, files) VALUES (?, 0, 0)", (changes.name,))
        number, text = write("SELECT id, standing FROM cells WHERE name = ?", (changes.name,)).fetchone()
        for file in changes.gone:
            write("DELETE FROM runs WHERE cell = ? AND file = ?", (number, file))
        for file, details in files.items():
            if isinstance(details, str):
                columns: tuple[str | None, bytes | None, str | None] = (None, None, details)
            else:
                summary = summary_text(details.run)
                key = hashlib.sha256(summary.encode()).digest()[:16]
                write("INSERT OR IGNORE INTO summaries VALUES (?, ?)", (key, summary))
                columns = (details.run.when, key, None)
            row = (number, file, *changes.new[file], *columns)
            write("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        cell = os.fsdecode(changes.name)
        new_details = {details.run.file: details for details in files.values() if isinstance(details, RunDetails)}
        before = parse_standing(text) if text else CellStanding()
        if before.best in new_details:  # its file was written again
            before = CellStanding()
        runs, left_out = self._runs_and_reasons(number, cell)
        standing = standing_from_runs(
            runs, left_out, before, lambda file: new_details.get(file) or load_run_details(self.folder / file)
        )
        values = (changes.changed, len(runs) + len(left_out), standing.text(), number)
        write("UPDATE cells SET changed = ?, files = ?, standing = ? WHERE id = ?", values)

    def _runs_and_reasons(self, number: int, cell: str) -> tuple[list[RecordedRun], list[str]]:
        """Return the runs of a cell, and why its other files are left out."""
        rows = self._database.execute(
            "SELECT file, time, text, left_out FROM runs LEFT JOIN summaries ON summary = id WHERE cell = ?"
            " ORDER BY file",
            (number,),
        ).fetchall()
        runs = [run_from_summary(text, _label(cell, file), when) for file, when, text, _ in rows if text is not None]
        return runs, [reason for _, _, text, reason in rows if text is None]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _label(cell: str, file: bytes) -> str:
    return printable_name(f"{cell}/{os.fsdecode(file)}")


def _origin(folder: Path) -> str:
    """Return a digest of what decides an index besides the files of runs: this program and the ledger of old names."""
    digest = hashlib.sha256(_program_digest())
    ledger = folder / sealed_files.LEDGER
    digest.update(ledger.read_bytes() if ledger.is_file() else b"")
    return digest.hexdigest()


@cache
def _program_digest() -> bytes:
    """Return a digest of the modules that read evidence."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
