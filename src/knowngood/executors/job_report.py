"""The answer of a command that ran jobs: a table for people, a document for programs, one exit code. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knowngood.core.errors import KnowngoodError
from knowngood.evidence.run_evidence import Evidence
from knowngood.executors.job_verdict import WORST_FIRST, JobResult, VerdictKind

REPORT_HEADER = ("cell", "outcome", "node", "waited", "ran", "tries", "evidence")


@dataclass(frozen=True, kw_only=True)
class FleetReport:
    """How the cells of a command came out; the mappings are by cell or by node."""

    executor: str
    results: Sequence[JobResult] = ()
    proven: Mapping[str, Evidence] = field(default_factory=dict)
    refused: Mapping[str, KnowngoodError] = field(default_factory=dict)
    """Cells that could not be made into jobs."""
    avoided: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the worst outcome."""
        codes = {result.verdict.kind.exit_code for result in self.results}
        codes |= {error.exit_code for error in self.refused.values()}
        return min(codes, key=WORST_FIRST.index, default=0)

    def document(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        tries = ([item.model_dump(mode="json") for item in result.tries] for result in self.results)
        cells: list[dict[str, Any]] = [
            {"cell": result.job.cell, "outcome": result.verdict.kind, "text": result.verdict.text, "tries": own}
            for result, own in zip(self.results, tries, strict=True)
        ]
        cells += [{"cell": cell, "outcome": VerdictKind.PROVEN, "text": run.when} for cell, run in self.proven.items()]
        cells += [
            {"cell": cell, "outcome": VerdictKind.REFUSED, "text": str(error)} for cell, error in self.refused.items()
        ]
        return {
            "executor": self.executor,
            "cells": cells,
            "avoided": dict(self.avoided),
            "notes": list(self.notes),
        }

    def rows(self) -> list[list[str]]:
        """Return the rows of the table with the header `REPORT_HEADER`."""
        rows = [_row(result) for result in self.results]
        rows += [[cell, VerdictKind.PROVEN, "-", "-", "-", "0", run.when] for cell, run in self.proven.items()]
        return rows + [[cell, VerdictKind.REFUSED, "-", "-", "-", "0", "-"] for cell in self.refused]

    def sentences(self) -> list[str]:
        """Return the sentences below the table: one for everything that is not simply good."""
        sentences = [
            f"{result.job.cell}: {result.verdict.kind}: {result.verdict.text}"
            for result in self.results
            if result.verdict.kind is not VerdictKind.GOOD or len(result.tries) > 1
        ]
        sentences += [f"{cell}: {VerdictKind.REFUSED}: {error}" for cell, error in self.refused.items()]
        sentences += [f"avoided: {node}: {reason}" for node, reason in self.avoided.items()]
        return [*sentences, *(f"note: {note}" for note in self.notes)]


def _row(result: JobResult) -> list[str]:
    last = result.tries[-1] if result.tries else None
    evidence = next((item.evidence for item in reversed(result.tries) if item.evidence), None)
    node, queued, ran = (last.node, last.queued, last.ran) if last else (None, None, None)
    seconds = ["-" if value is None else f"{value:.0f} s" for value in (queued, ran)]
    return [result.job.cell, result.verdict.kind, node or "-", *seconds, str(len(result.tries)), evidence or "-"]
