"""The last error of a log, and whether a line only mentions a failure that did not happen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from knowngood.compat.incident import Incident
from knowngood.compat.log_signature import COMMON
from knowngood.core.errors import redact_credentials
from knowngood.failures.log_scan import LogBlock

_MARKS = (b"Error", b"Exception", b"error:", b"ERROR", b"FATAL", b"fatal:", b"core dumped", b"Killed")
_NAMED = re.compile(r"\b(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure)\b:? ?\S")
_PLAIN = re.compile(r"\b(?:ERROR|FATAL|Error|error|fatal(?: error)?)\b ?:? ?\S|core dumped|(?:^|\s)Killed\s*$")
_NO_ERROR = re.compile(
    r"\b(?:0|no) errors?\b|errors?=0|ignore_errors|Traceback \(most|\bWARN(?:ING)?\b|Warning:|ChildFailedError",
    re.IGNORECASE,
)
_MENTION = re.compile(
    r"^\s*(?:[-*+\u2022]\s|#+\s|\d{1,3}[.)]\s)|\b(?:fix(?:e[sd])?|closes|resolve[sd]?|changelog|release notes?)\b",
    re.IGNORECASE,
)
_HANDLED = re.compile(r"\bfall(?:s|ing)?[ -]?back\b|\bfallback\b", re.IGNORECASE)
_LONGEST = 300
_FEWEST_WORDS = 2


@dataclass(frozen=True, kw_only=True)
class LastError:
    """The last line of a log that states an error."""

    text: str
    """The line, without logins and at most 300 characters long."""
    line: int


class LastErrorReader:
    """Finds the last error of a log (a `LogReader`)."""

    def __init__(self) -> None:
        self.error: LastError | None = None
        self._lines = 0

    @property
    def hints(self) -> frozenset[bytes]:
        """It looks at every block, since any word may end in `Error`."""
        return frozenset()

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:  # noqa: ARG002 - a `LogReader`
        """Look for the last error of a block."""
        if any(mark in block.raw for mark in _MARKS):
            text = block.text
            for pattern in (_NAMED, _PLAIN):
                if (last := self._last_line(text, pattern)) is not None:
                    self.error = last
                    break
        self._lines += block.raw.count(b"\n", 0, block.fresh)

    def finish(self) -> None:
        """Nothing is left to do at the end of the log."""

    def _last_line(self, text: bytes, pattern: re.Pattern[str]) -> LastError | None:
        end = len(text)
        for _ in range(200):
            at = max(text.rfind(mark, 0, end) for mark in _MARKS)
            if at < 0:
                return None
            start = text.rfind(b"\n", 0, at) + 1
            stop = text.find(b"\n", at)
            line = text[start : stop if stop >= 0 else len(text)][:4_000].decode("utf-8", "replace").strip()
            if pattern.search(line) and not _NO_ERROR.search(line) and not _MENTION.search(line):
                return LastError(text=redact_secrets(line[:_LONGEST]), line=self._lines + text.count(b"\n", 0, at) + 1)
            end = start
        return None


def redact_secrets(text: str) -> str:
    """Return a line of a log without logins in addresses and without what looks like an access token."""
    return re.sub(r"\b(?:hf_|gh[opsu]_|github_pat_|sk-|glpat-|xox[bp]-|AKIA)[\w-]{8,}", "***", redact_credentials(text))


def is_only_mentioned(line: str, *, failed: bool) -> bool:
    """Whether a line tells of a failure that did not happen here: a changelog, or one that was handled.

    Args:
        line: the line of the log.
        failed: whether the log has a traceback or any other error.
    """
    return not failed and bool(_MENTION.search(line) or _HANDLED.search(line))


def find_nearest_incident(error: LastError, incidents: Iterable[Incident]) -> Incident | None:
    """Return the incident whose signature has the most words in common with an error; `None` without two."""
    words = _rare_words(error.text)
    best: tuple[int, int, str] = (0, 0, "")
    chosen = None
    for incident in incidents:
        for signature in incident.signatures:
            own = _rare_words(signature.text)
            rank = (len(own & words), -len(own), incident.id)
            if rank[0] >= _FEWEST_WORDS and rank > best:
                best, chosen = rank, incident
    return chosen


def _rare_words(text: str) -> set[str]:
    common = {word.decode() for word in COMMON}
    return {word for word in re.findall(r"[A-Za-z_]\w{3,}", text) if word not in common}


def advise_paste(versions: Sequence[str], *, has_gpu: bool, has_traceback: bool) -> list[str]:
    """Return the commands and texts whose output would say more.

    Args:
        versions: the packages whose versions the log states.
        has_gpu: whether it names the GPU.
        has_traceback: whether it has a traceback.
    """
    wanted = [] if has_traceback else ["the whole traceback, from its first line on"]
    wanted += ["pip freeze"] if len(versions) < 3 else []
    return wanted + ([] if has_gpu else ["nvidia-smi"])
