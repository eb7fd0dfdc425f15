"""A line of the table: what was looked at, what was seen, the verdict, why, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Of one line, and of all of them."""

    BAD = "bad"
    UNKNOWN = "unknown"
    WARN = "warn"
    OK = "ok"
    NOT_APPLICABLE = "n/a"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line."""

    id: str
    """Stable, for programs: `driver`, `binary:flash-attn`."""
    what: str
    seen: str
    verdict: Verdict
    because: str = ""
    fix: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()
    """What this would lead to, by the names of `incidents/`."""
    source: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As `doctor --json` has it."""
        made: dict[str, Any] = {"id": self.id, "what": self.what, "seen": self.seen, "verdict": str(self.verdict)}
        made |= {"because": self.because} if self.because else {}
        for name in ("fix", "incidents", "source"):
            made |= {name: list(value)} if (value := getattr(self, name)) else {}
        return made


def overall(lines: Iterable[Line]) -> Verdict:
    """The gravest of a red line, something unknown, a warning."""
    verdicts = {line.verdict for line in lines}
    return next((verdict for verdict in Verdict if verdict in verdicts), Verdict.NOT_APPLICABLE)


def exit_code(lines: Iterable[Line]) -> int:
    """0 all fine (warnings included), 1 a red line, 3 nothing red and something unknown."""
    return {Verdict.BAD: 1, Verdict.UNKNOWN: 3}.get(overall(lines), 0)
