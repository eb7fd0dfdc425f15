"""Finds a line at a log's end that tells of trouble in other forms than an error's (a `LogReader`).

A log without any error is healthy only when its end says nothing of a failure: a C++ assertion, make, NCCL and ssh name
what went wrong in lines of their own kind. What such a line means is not computed; it keeps a log from being called
healthy.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError, is_only_mentioned, redact_secrets
from knowngood.failures.logs.log_scan import LogBlock
from knowngood.failures.logs.mere_warnings import is_warning

_END = 32_000
"""How many bytes at the end are looked at: a program that ends by a failure says so there."""
_KEPT = 200_000
"""How many bytes at the end may be asked for by what looks for a reason."""
_SHOWN = 300
_SIGN = lazy_pattern(
    r"\bassert(?:ion)?\b.{0,400}\bfailed\b|\*\*\* .*(?:\bStop\b|Error \d)|\bfatal\b|\bfail(?:ed|ure)\b|\bunreachable\b"
    r"|\b(?:connection|permission|access) (?:was )?(?:refused|denied|reset)\b|\bno such (?:file|host|device)\b"
    r"|\bunable to\b|\b(?:cannot|could not|couldn't|can't)\b|\bcore dumped\b|\baborted\b|\bkilled\b|\bnot recognized\b"
    r"|\bexit(?:ed with)? (?:code|status) [1-9]|\breturned non-zero\b|\berror\b",
    re.IGNORECASE,
)
_NO_SIGN = lazy_pattern(
    r"\b(?:0|no|without|zero) (?:\w+ )?(?:errors?|failures?|failed)\b"
    r"|\b(?:errors?|failures?|failed)\b['\"]?[:=] ?(?:0\b|none|false|\d+\.\d)"
    r"|\berror[ _-](?:rate|bars?|margin|feedback)\b"
    r"|\b(?:mean|squared|absolute|relative|root|character|word|phone\w*) error\b"
    r"|\b(?:ignor|skipp|retry|resum|recover|autotun)\w*\b|\bonly a warning\b"
    r"|\busing the (?:latest )?cached\b|\bharmless\b|\bsucce(?:ss|eded)",
    re.IGNORECASE,
)
"""Words beside which a sign is none: a measure called error, a count of none, what the program dealt with."""


class TroubleReader:
    """Keeps the end of a log."""

    def __init__(self) -> None:
        self._above = 0
        self._last = LogBlock(raw=b"")

    @property
    def hints(self) -> frozenset[bytes]:
        """Nothing: only the end is read."""
        return frozenset()

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Keep the block, which may be the last, and the number of lines above it."""
        del present
        if self._last.raw:
            self._above += self._last.fresh_lines
        self._last = block

    def finish(self) -> None:
        """Nothing is left to do at the end."""

    @property
    def log_end(self) -> bytes:
        """The end of the log, at most 200 000 bytes."""
        return self._last.text[-_KEPT:]

    def find_sign(self, known: Collection[int]) -> LastError | None:
        """Return the last line that tells of trouble, but for the `known` ones, which are harmless."""
        text = self._last.text
        start = max(0, len(text) - _END)
        number = self._above + text.count(b"\n", 0, start) + 1
        lines = text[start:].decode("utf-8", "replace").split("\n")
        for place in range(len(lines) - 1, -1, -1):
            line = lines[place]
            if number + place not in known and _tells_of_trouble(line):
                shown = redact_secrets(line.strip())[:_SHOWN]
                return LastError(text=shown, line=number + place, message=shown)
        return None


def _tells_of_trouble(line: str) -> bool:
    return (
        bool(_SIGN.search(line))
        and not _NO_SIGN.search(line)
        and not is_warning([line])
        and not is_only_mentioned(line, failed=False)
    )
