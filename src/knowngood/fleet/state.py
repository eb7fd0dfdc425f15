"""How far the jobs of an executor are: kept, so that a program that was killed goes on and proves nothing twice."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from knowngood.atomic import write_text
from knowngood.fleet import ledger
from knowngood.fleet.course import Try
from knowngood.fleet.job import Job
from knowngood.paths import cache_dir

SCHEMA = "knowngood/fleet-state/1"
KEPT = 10_000
"""Tracks of jobs whose verdict was told; the oldest go."""


class Track(BaseModel):
    """A job's tries that have ended, and the one that is at the engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cell: str
    tries: tuple[Try, ...] = ()
    attempt: int = 1
    avoid: tuple[str, ...] = ()
    settled: bool = False
    """Its verdict was told: whoever asks again gets a new try."""

    def job(self, work: Job) -> Job:
        """The job as it is, or was last, at the engine."""
        return replace(work, attempt=self.attempt, avoid=frozenset(self.avoid))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_: str = SCHEMA
    tracks: dict[str, Track] = {}


class State:
    """The tracks of an executor by work (a job's key but for attempt and nodes), and its ledger of nodes."""

    def __init__(self, folder: Path) -> None:
        self._path, self.nodes = folder / "state.json", folder / "nodes.json"
        self.tracks: dict[str, Track] = {}
        self.ledger = ledger.Ledger()
        self.note = ""
        with contextlib.suppress(FileNotFoundError, ValidationError, ValueError):  # damaged: every job is a new one
            stored = _File.model_validate_json(self._path.read_bytes())
            self.tracks = stored.tracks if stored.schema_ == SCHEMA else {}
        with contextlib.suppress(FileNotFoundError):
            found = ledger.parse(self.nodes.read_text(encoding="utf-8", errors="replace"))
            self.note = "" if found else f"{self.nodes} cannot be read: no node is avoided"
            self.ledger = found or self.ledger

    def begin(self, work: Job) -> Track:
        """The track of a job: as it was left, or a new one, after whatever was told of it before."""
        known = self.tracks.get(work.key)
        if known is None or known.settled:
            attempt = known.attempt + 1 if known else 1
            avoid = tuple(sorted(self.ledger.suspects()))
            self.tracks[work.key] = Track(cell=work.cell, attempt=attempt, avoid=avoid)
        return self.tracks[work.key]

    def save(self) -> None:
        """Write both files, each whole or not at all."""
        settled = [work for work, track in self.tracks.items() if track.settled]
        for work in settled[:-KEPT]:
            del self.tracks[work]
        document = _File(tracks=self.tracks).model_dump(mode="json", exclude_defaults=True)
        write_text(self._path, json.dumps({"schema_": SCHEMA, **document}, indent=1) + "\n")
        if self.ledger.results or self.nodes.exists():
            write_text(self.nodes, self.ledger.text())


def folder(executor: str) -> Path:
    """Where the state of an executor lies."""
    return cache_dir() / "fleet" / executor
