"""The exceptions: one class for each kind of failure, with the exit code that the command line promises.

0 yes or done, 1 no or failed, 2 wrong usage or bad input file, 3 unknown, 4 the environment lacks something.
The text of an exception is a sentence for a person: what failed, where, why, and what to do.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass

from knowngood.core.lazy_patterns import lazy_pattern

_URL_USER = lazy_pattern(r"(?i)\b((?:https?|socks\w*|ftp)://)[^/\s\"'<>]*@")
# `name:tag@sha256:...` names an image, it is no login.
# The lengths have bounds, since a long text has a possible beginning at each of its letters.
_PASSWORD = lazy_pattern(r"(://|(?<![\w/@:.-]))[^\s/@:\"'<>`=]{1,256}:[^\s/:\"'<>`]{1,4096}@(?!sha256:)(?=[\w\[])")


def redact_credentials(text: str) -> str:
    """Return `text` without the credentials in its addresses, so that errors and logs can show it.

    An address without a scheme, `alice:PASSWORD@host/x`, is recognized by its password.
    """
    return _PASSWORD.sub(r"\1***@", _URL_USER.sub(r"\1***@", text))


def strip_user_information(address: str) -> str:
    """Return one address, with or without a scheme, without the user and password before its host."""
    return re.sub(r"^([A-Za-z][\w+.-]*://)?[^/]*@", lambda match: match[1] or "", address)


class KnowngoodError(Exception):
    """A correct request that failed (exit 1)."""

    exit_code = 1

    def __str__(self) -> str:
        return redact_credentials(super().__str__())


class UsageError(KnowngoodError):
    """A command line or an input that makes no sense (exit 2)."""

    exit_code = 2


class UnknownError(KnowngoodError):
    """A question that the facts do not cover (exit 3)."""

    exit_code = 3


class MissingError(KnowngoodError):
    """An engine, a registry, a GPU or a tool that this machine lacks (exit 4)."""

    exit_code = 4


NO_SPACE_PATTERN = r"no space left on device|disk quota exceeded"
"""What programs say, in any case of letters, when the disk is full."""


class NetworkError(MissingError):
    """A server that did not answer, or not completely; a retry may help (exit 4)."""


class GarbageCollectedError(KnowngoodError):
    """The engine's garbage collector removed data that a build was about to use. Building again recreates them."""


class CorruptArchiveError(KnowngoodError):
    """An archive that is damaged or was replaced: its bytes are not those that were locked (exit 1)."""

    def __init__(self, file: str, *, expected: str = "", actual: str = "", detail: str = "", advice: str = "") -> None:
        """Make the sentence. `expected` and `actual` are SHA-256 in hexadecimal, empty where they are not known.

        `detail` is what the program that opened the archive said, `advice` what a person can do.
        """
        self.file, self.expected, self.actual, self.detail = file, expected, actual, detail
        reason = f" ({detail})" if detail else ""
        hashes = f"sha256 expected: {expected or 'unknown'}, found: {actual or 'unknown'}"
        super().__init__(f"{file} is a corrupt archive{reason}: {hashes}" + (f"; {advice}" if advice else ""))


def error_from_os(error: OSError) -> KnowngoodError | None:
    """Return an error with a sentence for a failure of the operating system, or `None` when it has no error number."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f" ({error.filename})" if error.filename else ""
        return MissingError(f"the disk is full{place}; free some space and run it again")
    if error.errno is None:
        return None
    return KnowngoodError(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))


def failure_from_output(message: str, output: str) -> KnowngoodError:
    """Return the error `message` about another program, which failed with this output; that of a full disk is known."""
    if re.search(NO_SPACE_PATTERN, output, re.IGNORECASE):
        return MissingError(f"the disk is full: {message}; free some space and run it again")
    return KnowngoodError(message)


def failure_from_error(error: KnowngoodError | OSError) -> KnowngoodError:
    """Return the error, or that of `error_from_os`; raises an error of the operating system without a number again."""
    failure = error if isinstance(error, KnowngoodError) else error_from_os(error)
    if failure is None:
        raise error
    return failure


@dataclass(frozen=True, kw_only=True, order=True)
class InputProblem:
    """One defect of an input file. `line` and `column` count from 1, as in editors."""

    file: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.text}"


class InputError(UsageError):
    """An input file with defects; `problems` holds all of them (exit 2)."""

    def __init__(self, problems: Sequence[InputProblem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))
