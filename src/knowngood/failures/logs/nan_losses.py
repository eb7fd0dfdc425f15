"""Finds out whether the losses and gradient norms that a log reports have become nan (a `LogReader`)."""

from __future__ import annotations

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.log_scan import LogBlock

NAN_INCIDENT = "loss-is-nan"
"""The incident that such a log shows."""
_REPORTED = lazy_pattern(
    rb"(?:(?P<whole>\b(?:eval|test)_)?loss|\b(?:grad|gradient)[ _]norm)['\"]?(?: is|:|[ \t]{0,40}=)?[ \t]{0,40}"
    rb"['\"]?(?:tensor\()?(?P<value>nan\b|[-+]?\d+\.\d)"
)
"""A report in a text in lower case."""
_FEWEST = 2
"""So many reports at the end must be nan: a single one is a step that loss scaling skips."""
_FEWEST_BETWEEN = 3
"""So many losses must be nan where others between them are numbers."""


class NanLossReader:
    """Follows the losses and gradient norms that a program reports."""

    def __init__(self) -> None:
        self._lines = 0
        self._first = 0
        self._in_a_row = 0
        self._first_loss = 0
        self._losses = 0

    @property
    def line(self) -> int:
        """The line of the first nan of those at the log's end, or of several losses; 0 when there are none."""
        if self._in_a_row >= _FEWEST:
            return self._first
        return self._first_loss if self._losses >= _FEWEST_BETWEEN else 0

    @property
    def hints(self) -> frozenset[bytes]:
        """It looks at every block itself."""
        return frozenset()

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Follow the reports of a block; only where one is nan, or the last one was, they can change anything."""
        del present
        text = LogBlock(raw=block.raw[: block.fresh]).text.lower()  # the next block has the rest again
        if self._in_a_row or b"nan" in text:
            for report in _REPORTED.finditer(text):
                if report["value"] != b"nan":
                    if b"loss" in report[0] and not report[0].endswith(b" 0.0"):
                        self._in_a_row = 0
                    continue
                line = self._lines + text.count(b"\n", 0, report.start()) + 1
                if not self._in_a_row:
                    self._first = line
                self._in_a_row += _FEWEST if report["whole"] else 1  # nothing scales an evaluation
                if b"loss" in report[0]:
                    self._first_loss = self._first_loss or line
                    self._losses += 1
        self._lines += block.fresh_lines

    def finish(self) -> None:
        """Nothing is left to do at the end."""
