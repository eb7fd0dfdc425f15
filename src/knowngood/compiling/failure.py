"""Why a compile ended without a wheel: the sentence that helps."""

from __future__ import annotations

import re
from pathlib import Path

from knowngood.compiling.place import Ended
from knowngood.errors import KnowngoodError, MissingError

_KILLED = (137, 143)  # by SIGKILL, SIGTERM


def failure(ended: Ended, each: int) -> KnowngoodError:
    """The sentence for a compile that ended without a wheel: memory, or its last errors and what is known of them."""
    log = ended.log
    if ended.out_of_memory or ended.result.get("killed_for_memory"):
        return MissingError(
            f"the compile was killed for want of memory ({each / 1e9:.1f} GB a job); run it again with fewer --jobs or "
            f"more --memory-per-job, finished objects are kept (log: {log})"
        )
    if ended.code in _KILLED and not ended.result:
        return MissingError(
            f"the compile was stopped from outside; run it again, finished objects are kept (log: {log})"
        )
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [line.strip()[:300] for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(?i)\b(error|fatal)\b\s*:|\berror\b.*:", line)]
    last = "\n  ".join((errors or lines)[-6:]) or "it said nothing"
    return KnowngoodError(f"the compile failed (log: {log}):\n  {last}{_known(log)}")


def _known(log: Path) -> str:
    """What `diagnose` knows of the log, as further lines."""
    from knowngood.diagnosing import diagnose
    from knowngood.incidents.files import read

    with log.open("rb") as opened:
        matches = diagnose.diagnose(opened, read()).matches
    lines = []
    for match in matches[:3]:
        fixes = "; ".join(str(fix["note"]) for fix in match.document()["fix"])
        lines.append(f"\nknown: {match.incident.title} [{match.incident.id}]" + (f"; fix: {fixes}" if fixes else ""))
    return "".join(lines)
