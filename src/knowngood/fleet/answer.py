"""What a command says of its jobs: a table for people, a document for programs, one exit code. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knowngood.errors import KnowngoodError
from knowngood.evidence import Evidence
from knowngood.fleet.course import WORST, End, Line

HEADER = ("cell", "outcome", "node", "waited", "ran", "tries", "evidence")


@dataclass(frozen=True, kw_only=True)
class Told:
    """How the cells of a command came out."""

    executor: str
    lines: Sequence[Line] = ()
    proven: Mapping[str, Evidence] = field(default_factory=dict)
    refused: Mapping[str, KnowngoodError] = field(default_factory=dict)
    """Cells that could not be jobs."""
    avoided: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def code(self) -> int:
        """That of the worst."""
        codes = {line.verdict.end.exit_code for line in self.lines} | {
            error.exit_code for error in self.refused.values()
        }
        return min(codes, key=WORST.index, default=0)

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        proven = [{"cell": cell, "outcome": str(End.PROVEN), "text": run.when} for cell, run in self.proven.items()]
        refused = [
            {"cell": cell, "outcome": str(End.REFUSED), "text": str(error)} for cell, error in self.refused.items()
        ]
        return {
            "executor": self.executor,
            "cells": [*map(_line, self.lines), *proven, *refused],
            "avoided": dict(self.avoided),
            "notes": list(self.notes),
        }

    def rows(self) -> list[list[str]]:
        """For the table of `HEADER`."""
        rows = [_row(line) for line in self.lines]
        rows += [[cell, str(End.PROVEN), "-", "-", "-", "0", run.when] for cell, run in self.proven.items()]
        return rows + [[cell, str(End.REFUSED), "-", "-", "-", "0", "-"] for cell in self.refused]

    def sentences(self) -> list[str]:
        """Below the table."""
        said = [
            f"{line.job.cell}: {line.verdict.end}: {line.verdict.text}"
            for line in self.lines
            if line.verdict.end is not End.GOOD or len(line.tries) > 1
        ]
        said += [f"{cell}: {End.REFUSED}: {error}" for cell, error in self.refused.items()]
        said += [f"avoided: {node}: {because}" for node, because in self.avoided.items()]
        return [*said, *(f"note: {note}" for note in self.notes)]


def _line(line: Line) -> dict[str, Any]:
    return {
        "cell": line.job.cell,
        "outcome": str(line.verdict.end),
        "text": line.verdict.text,
        "tries": [item.model_dump(mode="json") for item in line.tries],
    }


def _row(line: Line) -> list[str]:
    last = line.tries[-1] if line.tries else None
    evidence = next((item.evidence for item in reversed(line.tries) if item.evidence), None)
    return [
        line.job.cell,
        str(line.verdict.end),
        (last.node if last else None) or "-",
        _seconds(last.queued if last else None),
        _seconds(last.ran if last else None),
        str(len(line.tries)),
        evidence or "-",
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
