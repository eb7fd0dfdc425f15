"""One exception class a kind of failure, each with the exit code the command line promises.

0 yes/done, 1 no/failed, 2 wrong usage or bad input file, 3 unknown, 4 the environment is missing something.
The text of an exception is a sentence for a person: what, where, why, what to do.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass


def redacted(text: str) -> str:
    """`text` without the credentials in its URLs: what errors and logs may show."""
    return re.sub(r"(?i)\b(https?|socks\w*|ftp)(://)[^/\s\"'<>]*@", r"\1\2***@", text)


class KnowngoodError(Exception):
    """Something failed that was asked for properly (exit 1)."""

    exit_code = 1

    def __str__(self) -> str:
        return redacted(super().__str__())


class UsageError(KnowngoodError):
    """The command line asks for something that makes no sense (exit 2)."""

    exit_code = 2


class UnknownError(KnowngoodError):
    """The facts do not cover what was asked (exit 3)."""

    exit_code = 3


class MissingError(KnowngoodError):
    """The machine lacks an engine, a registry, a GPU or a tool (exit 4)."""

    exit_code = 4


class NetworkError(MissingError):
    """A server did not answer, or not to the end: what may go better in a moment (exit 4)."""


class CollectedError(KnowngoodError):
    """The engine's garbage collector took what a build was about to use: the next attempt makes it again."""


def from_os(error: OSError) -> KnowngoodError | None:
    """The sentence for what the operating system refused; `None` when it did not say what."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f" ({error.filename})" if error.filename else ""
        return MissingError(f"the disk is full{place}; free some space and run it again")
    if error.errno is None:
        return None
    return KnowngoodError(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """One defect of an input file; `line` and `column` count from 1, as editors do."""

    file: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.text}"


class InputError(UsageError):
    """An input file is wrong; carries every problem found in it, not the first only (exit 2)."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))
