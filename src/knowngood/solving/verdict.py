"""What `check` answers: verdict, findings, suggestion, as its contract has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from knowngood.solving.findings import Finding


class Verdict(StrEnum):
    """`broken`: an error; `unknown`: not covered by facts; `verified`: seen; `compatible`: allowed, not watched."""

    VERIFIED = "verified"
    COMPATIBLE = "compatible"
    BROKEN = "broken"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """What the command returns."""
        return {"broken": 1, "unknown": 3}.get(self.value, 0)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The answer to a request."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    changes: Mapping[str, str] | None
    """The suggestion: package -> version, or `none` for "leave it out"."""
    cell: str | None
    """The published cell that has it."""
    evidence: tuple[str, ...] = ()
    uncovered: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As `check --json` has it."""
        suggestion = None
        if self.changes is not None or self.cell is not None:
            suggestion = {"changes": dict(self.changes or {}), "cell": self.cell}
        made: dict[str, Any] = {
            "verdict": str(self.verdict),
            "findings": [finding.document() for finding in self.findings],
            "suggestion": suggestion,
        }
        if self.evidence:
            made["evidence"] = list(self.evidence)
        if self.uncovered:
            made["uncovered"] = dict(self.uncovered)
        return made | ({"notes": list(self.notes)} if self.notes else {})
