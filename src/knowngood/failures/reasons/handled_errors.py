"""Which lines of a log are those of an error that was caught, before another one ended the program. Pure.

Python prints both: the first, "During handling of the above exception, another exception occurred", and the second.
Where the handler raises in its own words it mostly repeats the first, which says more. Where Python itself refuses
something in the handler, the program would have gone on but for the second.
"""

from __future__ import annotations

from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.message_causes import SPEAKS

_HANDLING = b"During handling of the above exception, another exception occurred"
_BEGIN = b"Traceback (most recent call last)"
_OF_PYTHON = ("TypeError", "AttributeError", "NameError", "UnboundLocalError", "ModuleNotFoundError", "ImportError")
"""Classes with which Python refuses what a handler does."""


def find_handled_lines(error: LastError | None) -> range:
    """Return the numbers of the lines of the error that was caught; none where the last error repeats it."""
    frame = error.frames[-1] if error is not None and error.frames else None
    if error is None or frame is None or SPEAKS.match(frame.code):
        return range(0)
    if not error.message.rpartition(": ")[0].startswith(_OF_PYTHON) and not error.message.startswith(_OF_PYTHON):
        return range(0)
    at = error.above.rfind(_HANDLING)
    if at < 0 or error.above.count(_BEGIN, at) != 1:
        return range(0)
    first = error.above.rfind(_BEGIN, 0, at)
    if first < 0:
        return range(0)
    return range(error.line - error.above.count(b"\n", first), error.line - error.above.count(b"\n", at))
