"""The index of a folder of evidence: what lists, tiers, histories and pages need, without opening the files again.

It is derived: SQLite in the cache folder, made anew when it is damaged, of another program, or gone. A cell's folder is
looked at again when its time has changed, which each file that comes or goes does to it. Of few runs the time and size
of every file are looked at too. With a million that alone would take seconds; there, a file that is changed in place is
noticed by whoever opens it, since its name says what it held, but not by a list.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from knowngood import evidence, sealed
from knowngood.paths import cache_dir
from knowngood.runs import folders, observed, sparing, standing
from knowngood.runs.folders import Look, Read
from knowngood.runs.observed import Observed, Run, printable
from knowngood.runs.standing import Standing

FEW = 20_000
"""Runs up to which every file's time and size are looked at."""
_AT_ONCE = 100
"""Cells that are written down together; a run that is killed goes on after them."""
_TABLES = {
    "made": "(by TEXT)",
    "cells": "(id INTEGER PRIMARY KEY, name BLOB UNIQUE, changed INTEGER, files INTEGER, standing TEXT)",
    "said": "(id BLOB PRIMARY KEY, text TEXT) WITHOUT ROWID",
    "runs": "(cell INTEGER, file BLOB, size INTEGER, changed INTEGER, time TEXT, said BLOB, left_out TEXT,"
    " PRIMARY KEY(cell, file)) WITHOUT ROWID",
}
_T = TypeVar("_T")


def ask(folder: Path, question: Callable[[Index], _T], say: Callable[[str], None] = lambda _: None) -> _T:
    """An index that knows the folder as it is now answers; one in memory where the cache cannot be used."""
    answer = partial(_answer, folder, question, say)
    name = hashlib.sha256(f"{platform.node()} {folder.resolve()}".encode()).hexdigest()[:32]
    place = cache_dir() / "runs" / f"{name}.sqlite"  # one a machine: a shared home is no place for its locks
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            return answer(place)
        except sqlite3.OperationalError:  # no room, read-only, locked for a minute
            raise
        except sqlite3.DatabaseError:  # damaged
            for suffix in ("", "-wal", "-shm"):
                place.with_name(place.name + suffix).unlink(missing_ok=True)
            return answer(place)
    except (sqlite3.Error, OSError):
        return answer(":memory:")


def _answer(folder: Path, question: Callable[[Index], _T], say: Callable[[str], None], place: Path | str) -> _T:
    with closing(sqlite3.connect(place, timeout=60, isolation_level=None)) as database:
        index = Index(folder, database)
        index.refresh(say)
        return question(index)


class Index:
    """See the module's text."""

    def __init__(self, folder: Path, database: sqlite3.Connection) -> None:
        self.folder, self._database = folder, database
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        made = _made(folder)
        if not self._is_of(made):
            with self._transaction():
                if not self._is_of(made):  # nobody else was first
                    self._begin(made)

    def standings(self) -> dict[str, Standing]:
        """How every cell with runs stands."""
        rows = self._database.execute("SELECT name, standing FROM cells ORDER BY name")
        return {os.fsdecode(name): standing.parse(text) for name, text in rows}

    def runs(self, cell: str, newest: int = -1) -> list[Run]:
        """All runs of a cell, or so many by the time in their names; oldest first."""
        rows = self._database.execute(
            "SELECT file, time, text FROM runs JOIN said ON said = id"
            " WHERE cell = (SELECT id FROM cells WHERE name = ?) ORDER BY file DESC LIMIT ?",
            (os.fsencode(cell), newest),
        )
        found = [standing.heard(text, printable(f"{cell}/{os.fsdecode(file)}"), when) for file, when, text in rows]
        return sorted(found, key=lambda run: (run.when, run.file))

    def refresh(self, say: Callable[[str], None]) -> None:
        """Read what is new."""
        looks, gone = self._looks()
        count = sum(len(look.new) for look in looks)
        if count > FEW:
            say(f"reading {count} runs that are new; their index stays in the cache folder")
        pending: list[Read] = []
        for item in folders.read(self.folder, looks, count):
            pending.append(item)
            if len(pending) == _AT_ONCE:
                self._take(pending)
                pending.clear()
        if pending or gone:
            self._take(pending, gone)

    def _is_of(self, made: str) -> bool:
        names = self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'made'").fetchall()
        return bool(names) and self._database.execute("SELECT by FROM made").fetchall() == [(made,)]

    def _begin(self, made: str) -> None:
        for name, columns in _TABLES.items():
            self._database.execute(f"DROP TABLE IF EXISTS {name}")
            self._database.execute(f"CREATE TABLE {name}{columns}")
        self._database.execute("INSERT INTO made VALUES (?)", (made,))

    def _looks(self) -> tuple[list[Look], list[bytes]]:
        """The cells that may have changed, and those that are gone."""
        known = dict(self._database.execute("SELECT name, changed FROM cells").fetchall())
        (count,) = self._database.execute("SELECT coalesce(sum(files), 0) FROM cells").fetchone()
        found, looks = set(), []
        for name in folders.cells(self.folder):
            found.add(name)
            place = os.path.join(os.fsencode(self.folder), name)  # noqa: PTH118 - bytes, ten thousand of them
            changed = os.stat(place).st_mtime_ns  # noqa: PTH116
            if count > FEW and known.get(name) == changed:
                continue
            look = folders.look(name, place, changed, self._files(name))
            if look.new or look.gone or known.get(name) != look.changed:
                looks.append(look)
        return looks, [name for name in known if name not in found]

    def _files(self, name: bytes) -> dict[bytes, tuple[int, int]]:
        rows = self._database.execute(
            "SELECT file, runs.size, runs.changed FROM runs JOIN cells ON cell = id WHERE name = ?", (name,)
        )
        return {file: (size, changed) for file, size, changed in rows}

    def _take(self, read: Iterable[Read], gone: Iterable[bytes] = ()) -> None:
        with self._transaction():
            for name in gone:
                self._database.execute("DELETE FROM runs WHERE cell = (SELECT id FROM cells WHERE name = ?)", (name,))
                self._database.execute("DELETE FROM cells WHERE name = ?", (name,))
            for look, files in read:
                self._take_one(look, dict(files))

    def _take_one(self, look: Look, files: Mapping[bytes, Observed | str]) -> None:
        write = self._database.execute
        write("INSERT OR IGNORE INTO cells(name, changed, files) VALUES (?, 0, 0)", (look.name,))
        number, kept = write("SELECT id, standing FROM cells WHERE name = ?", (look.name,)).fetchone()
        for file in look.gone:
            write("DELETE FROM runs WHERE cell = ? AND file = ?", (number, file))
        for file, found in files.items():
            when, key, why = None, None, None
            if isinstance(found, str):
                why = found
            else:
                text = standing.said(found.run)
                when, key = found.run.when, hashlib.sha256(text.encode()).digest()[:16]
                write("INSERT OR IGNORE INTO said VALUES (?, ?)", (key, text))
            row = (number, file, *look.new[file], when, key, why)
            write("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        before = standing.parse(kept) if kept else Standing()
        cell = os.fsdecode(look.name)
        fresh = {found.run.file: found for found in files.values() if isinstance(found, Observed)}
        if before.best in fresh:
            before = Standing()
        runs, left_out = self._runs(number, cell)
        made = standing.of(runs, left_out, before, lambda file: fresh.get(file) or observed.load(self.folder / file))
        kept = (look.changed, len(runs) + len(left_out), made.text(), number)
        write("UPDATE cells SET changed = ?, files = ?, standing = ? WHERE id = ?", kept)

    def _runs(self, number: int, cell: str) -> tuple[list[Run], list[str]]:
        rows = self._database.execute(
            "SELECT file, time, text, left_out FROM runs LEFT JOIN said ON said = id WHERE cell = ? ORDER BY file",
            (number,),
        )
        runs, left_out = [], []
        for file, when, text, why in rows:
            if text is None:
                left_out.append(why)
            else:
                runs.append(standing.heard(text, printable(f"{cell}/{os.fsdecode(file)}"), when))
        return runs, left_out

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _made(folder: Path) -> str:
    """What an index follows from besides the files of runs: the program and the ledger of old names."""
    made = hashlib.sha256(_program())
    with_ledger = folder / sealed.LEDGER
    made.update(with_ledger.read_bytes() if with_ledger.is_file() else b"")
    return made.hexdigest()


@cache
def _program() -> bytes:
    """The modules that read evidence, and this one."""
    made = hashlib.sha256(Path(__file__).read_bytes())
    for module in (evidence, sealed, folders, observed, sparing, standing):
        made.update(Path(str(module.__file__)).read_bytes())
    return made.digest()
