"""Lines of tracebacks against the published files: which releases have that function at that line.

A log may claim one version and run another: the line at which a function was left shows which releases it can be of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from knowngood.diagnosing.log import Block
from knowngood.diagnosing.versions import HEAD

MOST = 200
"""Frames kept of a log."""
FRAME_MARKS = (b'.py", line ', b'.py\\", line ')
"""Of a frame as Python writes it, and in JSON."""

Table = Mapping[str, Mapping[str, Mapping[str, Sequence[Sequence[int]]]]]
"""Release -> file -> function -> first and last line of each of that name."""
Tables = Callable[[str], Table]
"""A package's table; empty when there is none."""

PACKAGES = {
    b"transformers": "transformers",
    b"flash_attn": "flash-attn",
    b"transformer_engine": "transformer-engine",
    b"xtuner": "xtuner",
    b"torch": "torch",
}
"""What is imported -> the distribution that there is a table of."""
_FRAME = re.compile(
    rb"(?:site|dist)-packages[/\\]{1,4}((" + b"|".join(PACKAGES) + rb")(?:[/\\]{1,4}\w{1,80}){1,8}\.py)"
    rb"(?:[\\\"']{0,3}, line (\d{1,6}), in |:(\d{1,6}),? in )([\w.]{1,120})"
)


class Frame(NamedTuple):
    """One frame of a traceback."""

    package: str
    file: str
    line: int
    function: str


@dataclass(kw_only=True)
class Frames:
    """Reads along, as `diagnosing.log.Reader`: the head of a log, and its end, where the failure mostly is."""

    found: dict[Frame, None] = field(default_factory=dict)
    _read: int = 0
    _recent: list[Block] = field(default_factory=list)

    @property
    def hints(self) -> frozenset[bytes]:
        """Without it there is no path of an installed package."""
        return frozenset((b"packages",))

    def feed(self, block: Block, present: frozenset[bytes]) -> None:
        """Read a block."""
        if self._read < HEAD and b"packages" in present:
            self._look(block.text)
        elif self._read >= HEAD:
            self._recent = [*self._recent[-1:], block]
        self._read += len(block.raw)

    def finish(self) -> None:
        """Read the end; what stands there counts more than what stands at the head."""
        for block in self._recent:
            self._look(block.text[-HEAD // 4 :])
        self._recent = []

    def _look(self, block: bytes) -> None:
        for count, match in enumerate(_FRAME.finditer(block)):
            frame = Frame(
                package=PACKAGES[match[2]],
                file=re.sub(rb"[/\\]+", b"/", match[1]).decode("ascii", "replace"),
                line=int(match[3] or match[4]),
                function=match[5].rpartition(b".")[2].decode("ascii", "replace"),
            )
            self.found.setdefault(frame)
            if count > 20 * MOST or len(self.found) >= MOST:
                break


@dataclass(kw_only=True)
class Tracebacks:
    """Reads along, and knows whether there is a frame of any traceback."""

    seen: bool = False

    @property
    def hints(self) -> frozenset[bytes]:
        """Every frame has it."""
        return frozenset((b"line",))

    def feed(self, block: Block, present: frozenset[bytes]) -> None:
        """Read a block."""
        if not self.seen and b"line" in present:
            self.seen = any(mark in block.text for mark in FRAME_MARKS)

    def finish(self) -> None:
        """There is no more."""


@dataclass(frozen=True, kw_only=True)
class LineEvidence:
    """What the lines of a package's files say of its release."""

    releases: tuple[str, ...]
    """Those that fit every frame, oldest first; none when the files are of no release (changed by hand, or a mix)."""
    span: str = "no release"
    """The same for people: `1.10.0, 2.1.0 to 2.2.0`."""
    claimed: str = ""
    """The version that the log states and that does not fit."""
    frame: str = ""
    """The frame that says most against it."""

    @property
    def exact(self) -> bool:
        """Whether one release is left."""
        return len(self.releases) == 1

    def document(self) -> dict[str, Any]:
        """As `diagnose --json` shows it."""
        made: dict[str, Any] = {"releases": list(self.releases)}
        return made | ({"contradicts": self.claimed, "frame": self.frame} if self.claimed else {})


def evidence(frames: Sequence[Frame], tables: Tables, claimed: Mapping[str, Sequence[str]]) -> dict[str, LineEvidence]:
    """Package -> what its frames say; packages without a table, or whose frames say nothing, are left out."""
    found: dict[str, LineEvidence] = {}
    for package in dict.fromkeys(frame.package for frame in frames):
        table = tables(package)
        told = [
            (frame, fits) for frame in frames if frame.package == package and (fits := _fits(frame, table)) is not None
        ]
        if not told:
            continue
        releases = tuple(version for version in table if all(version in fits for _, fits in told))
        stated = [version for text in claimed.get(package, ()) if (version := text.partition("+")[0]) in table]
        against = "" if not stated or any(version in releases for version in stated) else stated[-1]
        worst = min((item for item in told if against not in item[1]), key=lambda item: len(item[1]), default=None)
        frame = "" if not against or worst is None else f"{worst[0].file}, line {worst[0].line}, in {worst[0].function}"
        span = _span(table, frozenset(releases)) or "no release"
        found[package] = LineEvidence(releases=releases, span=span, claimed=against, frame=frame)
    return found


def _span(table: Table, releases: frozenset[str]) -> str:
    runs = [list(group) for inside, group in groupby(table, key=releases.__contains__) if inside]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _fits(frame: Frame, table: Table) -> frozenset[str] | None:
    """The releases with this function at this line; `None` when no release has such a function in the table."""
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
