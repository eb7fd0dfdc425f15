"""The first error of a process, named in the answer of the line by which another process only passes it on. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.compat.incident import Incident
from knowngood.failures.logs.last_errors import LAUNCHER_ERROR, LastError
from knowngood.failures.names.message_causes import shorten_text
from knowngood.failures.names.name_situation import advise

_SHOWN = 180


def describe_passed_on(incident: Incident, error: LastError) -> Incident | None:
    """Name the error that was passed on; `None` where the log has only the line that passes it on."""
    sentence = (error.message or error.text).partition(' File "')[0]
    if LAUNCHER_ERROR.search(error.text):
        return None
    shown = shorten_text(sentence, _SHOWN)
    frame = error.frames[-1] if error.frames else None
    at = f" It arises in {frame.short_file}, line {frame.line}." if frame is not None else ""
    return replace(
        incident,
        title=f"{incident.title.partition(':')[0]}: {shown}",
        because=f"The process that the others wait for ended by this error of its own.{at} {incident.because}",
        fix=(advise(f"What that error says, not the lines behind it: {shown}"), *incident.fix),
    )
