"""The lines of a traceback compared with the published files: which releases have that function at that line.

A log may state one version and run another; the lines in its traceback show which releases can have run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.log_scan import LogBlock
from knowngood.failures.logs.log_versions import HEAD

MOST = 200
"""The most frames that are kept of a log."""
FRAME_MARKS = (b'.py", line ', b'.py\\", line ')
"""The mark of a frame in plain text, and in JSON."""

LineTable = Mapping[str, Mapping[str, Mapping[str, Sequence[Sequence[int]]]]]
"""Release -> file -> function -> first and last line of each function of that name."""
LoadLineTable = Callable[[str], LineTable]
"""Loads the table of a package, an empty one when there is none."""

PACKAGES = {
    b"transformers": "transformers",
    b"flash_attn": "flash-attn",
    b"transformer_engine": "transformer-engine",
    b"xtuner": "xtuner",
    b"torch": "torch",
}
"""Imported package -> the distribution whose table has its lines."""
_FRAME = lazy_pattern(
    rb"(?:site|dist)-packages[/\\]{1,4}((" + b"|".join(PACKAGES) + rb")(?:[/\\]{1,4}\w{1,80}){1,8}\.py)"
    rb"(?:[\\\"']{0,3}, line (\d{1,6}), in |:(\d{1,6}),? in )([\w.]{1,120})"
)


class TracebackFrame(NamedTuple):
    """One frame of a traceback, in a file of a package."""

    package: str
    file: str
    line: int
    function: str


@dataclass(kw_only=True)
class FrameReader:
    """Collects frames at the beginning of a log and at its end, where the failure mostly is (a `LogReader`)."""

    frames: dict[TracebackFrame, None] = field(default_factory=dict)
    _read: int = 0
    _recent: list[LogBlock] = field(default_factory=list)

    @property
    def hints(self) -> frozenset[bytes]:
        """The word that every path of an installed package has."""
        return frozenset((b"packages",))

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Read a block at the beginning of the log, and keep the last two for the end."""
        if self._read < HEAD and b"packages" in present:
            self._read_text(block.text)
        elif self._read >= HEAD:
            self._recent = [*self._recent[-1:], block]
        self._read += len(block.raw)

    def finish(self) -> None:
        """Read the end of the log."""
        for block in self._recent:
            self._read_text(block.text[-HEAD // 4 :])
        self._recent = []

    def _read_text(self, block: bytes) -> None:
        for count, match in enumerate(_FRAME.finditer(block)):
            frame = TracebackFrame(
                package=PACKAGES[match[2]],
                file=re.sub(rb"[/\\]+", b"/", match[1]).decode("ascii", "replace"),
                line=int(match[3] or match[4]),
                function=match[5].rpartition(b".")[2].decode("ascii", "replace"),
            )
            self.frames.setdefault(frame)
            if count > 20 * MOST or len(self.frames) >= MOST:
                break


@dataclass(kw_only=True)
class TracebackDetector:
    """Tells whether a log has a frame of any traceback (a `LogReader`)."""

    present: bool = False

    @property
    def hints(self) -> frozenset[bytes]:
        """The word that every frame has."""
        return frozenset((b"line",))

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:
        """Look for a frame in a block."""
        if not self.present and b"line" in present:
            self.present = any(mark in block.text for mark in FRAME_MARKS)

    def finish(self) -> None:
        """Nothing is left to do at the end of the log."""


@dataclass(frozen=True, kw_only=True)
class LineEvidence:
    """What the lines of a package's files in a traceback say about its release."""

    releases: tuple[str, ...]
    """The releases that fit every frame, oldest first; none when the files were changed by hand, or are a mix."""
    span: str = "no release"
    """The releases as text for people: `1.10.0, 2.1.0 to 2.2.0`."""
    claimed: str = ""
    """The version that the log states, when it does not fit; else empty."""
    frame: str = ""
    """The frame that fits the fewest releases and contradicts the stated version."""

    @property
    def exact(self) -> bool:
        """Whether exactly one release fits."""
        return len(self.releases) == 1

    def document(self) -> dict[str, Any]:
        """The evidence as `diagnose --json` prints it."""
        document: dict[str, Any] = {"releases": list(self.releases)}
        return document | ({"contradicts": self.claimed, "frame": self.frame} if self.claimed else {})


def judge_frames(
    frames: Sequence[TracebackFrame], load_lines: LoadLineTable, claimed: Mapping[str, Sequence[str]]
) -> dict[str, LineEvidence]:
    """Return what the frames of each package say about its release, given the versions that the log states.

    Packages without a table, and packages whose frames are of functions that no release has, are left out.
    """
    evidence: dict[str, LineEvidence] = {}
    for package in dict.fromkeys(frame.package for frame in frames):
        table = load_lines(package)
        own = [frame for frame in frames if frame.package == package]
        fitting = [(frame, fits) for frame in own if (fits := _fitting_releases(frame, table)) is not None]
        if not fitting:
            continue
        releases = tuple(version for version in table if all(version in fits for _, fits in fitting))
        stated = [version for text in claimed.get(package, ()) if (version := text.partition("+")[0]) in table]
        against = "" if not stated or any(version in releases for version in stated) else stated[-1]
        worst = min((item for item in fitting if against not in item[1]), key=lambda item: len(item[1]), default=None)
        frame = "" if not against or worst is None else f"{worst[0].file}, line {worst[0].line}, in {worst[0].function}"
        span = _span(table, frozenset(releases)) or "no release"
        evidence[package] = LineEvidence(releases=releases, span=span, claimed=against, frame=frame)
    return evidence


def _span(table: LineTable, releases: frozenset[str]) -> str:
    runs = [list(group) for inside, group in groupby(table, key=releases.__contains__) if inside]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _fitting_releases(frame: TracebackFrame, table: LineTable) -> frozenset[str] | None:
    """The releases with this function at this line; `None` when no release in the table has such a function."""
    places = {
        version: files[frame.file][frame.function]
        for version, files in table.items()
        if frame.function in files.get(frame.file, {})
    }
    if not places:
        return None
    return frozenset(
        version for version, ranges in places.items() if any(first <= frame.line <= last for first, last in ranges)
    )
