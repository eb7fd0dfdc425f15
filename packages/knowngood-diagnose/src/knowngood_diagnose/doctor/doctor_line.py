"""One line of the doctor's table: what was examined, what was observed, the verdict, why, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from typing import Any


class DoctorVerdict(StrEnum):
    """The verdict of one line or of the whole table; the gravest comes first."""

    BAD = "bad"
    UNKNOWN = "unknown"
    WARN = "warn"
    OK = "ok"
    NOT_APPLICABLE = "n/a"


BAD = DoctorVerdict.BAD
UNKNOWN = DoctorVerdict.UNKNOWN
WARN = DoctorVerdict.WARN
OK = DoctorVerdict.OK
NOT_APPLICABLE = DoctorVerdict.NOT_APPLICABLE


@dataclass(frozen=True)
class DoctorLine:
    """One line of the table; a new one is fine until `judged` says otherwise."""

    id: str
    """A stable name for programs: `driver`, `binary:flash-attn`."""
    subject: str
    """What was examined, for people."""
    observation: str
    _: KW_ONLY
    verdict: DoctorVerdict = OK
    because: str = ""
    fix: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()
    """The failures that this leads to, as names of files in `incidents/`."""
    source: tuple[str, ...] = ()

    def judged(
        self,
        verdict: DoctorVerdict,
        because: str = "",
        *fix: str,
        incidents: tuple[str, ...] = (),
        source: tuple[str, ...] = (),
    ) -> DoctorLine:
        """Return the line with a verdict, its reason and what to do about it."""
        return replace(self, verdict=verdict, because=because, fix=fix, incidents=incidents, source=source)

    def document(self) -> dict[str, Any]:
        """Return the line as `doctor --json` prints it; empty fields are left out."""
        entry: dict[str, Any] = {"id": self.id, "what": self.subject, "seen": self.observation}
        entry |= {"verdict": str(self.verdict)} | ({"because": self.because} if self.because else {})
        for name in ("fix", "incidents", "source"):
            entry |= {name: list(value)} if (value := getattr(self, name)) else {}
        return entry


def overall_verdict(lines: Iterable[DoctorLine]) -> DoctorVerdict:
    """Return the gravest verdict of the lines; `n/a` without any."""
    verdicts = {line.verdict for line in lines}
    return next((verdict for verdict in DoctorVerdict if verdict in verdicts), NOT_APPLICABLE)


def doctor_exit_code(lines: Iterable[DoctorLine]) -> int:
    """Return 1 for a bad line, 3 when the gravest verdict is unknown, else 0 (warnings included)."""
    return {BAD: 1, UNKNOWN: 3}.get(overall_verdict(lines), 0)
