"""The last error of a log, and whether a line only mentions a failure that did not happen."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from knowngood.core.errors import redact_credentials
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.logged_errors import CodeFrame, list_frames_above
from knowngood_facts.compat.incident import COMMON, Incident

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from knowngood_diagnose.failures.logs.log_scan import LogBlock

_MARKS = (
    b"Error",
    b"Exception",
    b"pip install",
    b"error:",
    b"ERROR",
    b"FATAL",
    b"fatal:",
    b"core dumped",
    b"Killed",
    b"zsh: killed",
    b"StopIteration",
    b"OutOfResources",
    b"ArrowInvalid",
    b"exc.Unsupported",
    b"Timeout",
    b"not found",
    b"failed to run command",
    "未找到命令".encode(),
    b"not recognized as",
    b"unexpected keyword argument",
    b"required positional argument",
    b"cannot import name",
)
_NAMED = lazy_pattern(
    r"\b(?:[A-Za-z_]\w*\.)*(?:Exception\b: ?\S|[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure)\b(?::? ?\S|:?$)"
    r"|^StopIteration$|(?:(?<=^)|(?<=\]: ))(?:[a-z_]\w*\.)+[A-Z]\w*: ?\S)"
)
_PLAIN = lazy_pattern(
    r"\b(?:ERROR|FATAL|Error|error|fatal(?: error)?)\b ?:? ?\S|core dumped|(?:^|\s)Killed\s*$"
    r"|^\S+: line \d+: +\d+ Killed\b|^zsh: killed\b"
    r"|(?:^|\s)[\w.-]+: command not found\s*$"
    r"|^(?:nohup|env|exec|sudo): failed to run command|^(?:\S{1,80}: )?[\w.-]+: 未找到命令\s*$"
    r"|^\S{0,40}sh: \d+: [\w.-]+: not found\s*$|^zsh: command not found: \S"
    r"|^[A-Za-z_][\w.]*\(\) (?:got an unexpected keyword argument '|missing \d+ required )"
    r"|^cannot import name '\w+' from '[\w.]+'"
    r"|^'[\w.-]+' is not recognized as an internal or external|^\S+ : The term '[\w.-]+' is not recognized"
)
LAUNCHER_ERROR = lazy_pattern(
    r"\b(?:ChildFailedError|CalledProcessError)\b|metadata-generation-failed|subprocess-exited-with-error"
    r"|(?:Failed|Could not) build|legacy-install-failure|failed-wheel-build"
    r"|DatasetGenerationError: An error occurred while generating the dataset"
    r"|remote process exited or there was|Engine core initialization failed|EngineDeadError|WorkerProc "
    r"initialization failed|srun: error: \S+ tasks? \S|ncclRemoteError|NCCL communicator was aborted"
    r"|Watchdog caught collective"
)
"""The errors with which a launcher, pip or NCCL says that another program failed: any other error says more."""
_NO_ERROR = lazy_pattern(
    r"\b(?:0|no) errors?\b|errors?=0|ignore_errors|Traceback \(most|\bWARN(?:ING)?\b|Warning:"
    r"|Error caught was:|Could not load library libnvrtc",
    re.IGNORECASE,
)
_MENTION = lazy_pattern(
    r"^\s*(?:[-*+\u2022]\s|#+\s|\d{1,3}[.)]\s)"
    r"|(?<!not )(?<!to )\b(?:fix(?:e[sd])?|closes|resolve[sd]?|changelog(?!\.)|release notes?)\b",
    re.IGNORECASE,
)
_CONDITIONAL = lazy_pattern(r"\bif you\b.{1,100}\byou(?:'ll| will| would| may| might) (?:get|see)\b", re.IGNORECASE)
"""Words that announce an error which comes only with something that is not used here."""
_HANDLED = lazy_pattern(r"\bfall(?:s|ing)?[ -]?back\b|\bfallback\b", re.IGNORECASE)
_LONGEST = 300
_BEFORE, _BEHIND = 24_000, 1_500
_RANK = lazy_pattern(r"(?m)^\s*(?:\[?rank\s?\d+\]?:|\[\d+\]:|\(\w+ (?:rank|pid)=\d+\)) ?")
_END = lazy_pattern(
    r"\n\s*\n(?!\s*Invoked with:)|\n(?=\s*\[end of output\]|Exception ignored|Traceback|\s*\d{1,3}%\||---|- \S+: ?\d"
    r"|\S+:\d+: |\[|E\d{4} |W\d{4} |(?:\w+\.)+[A-Z]\w*(?:Error|Exception): |During handling|ERROR:|\s+at "
    r"|[> ]{0,4}```|(?:\d+: )?(?:srun|slurmstepd): )"
)
_RAISED = lazy_pattern(r"^raise (?P<name>[A-Z]\w*)\((?P<quote>[\"'])(?P<text>[^{}%]{8,250})(?P=quote)\)$")
"""A line of code that raises an error with a message of which all words stand in it."""
_CODE_LINE = lazy_pattern(r"\braise [\w.]+\($|\bexcept [\w., ()]{1,100}:$")
"""A line of code of a traceback, of which the error comes in a later line."""
_FEWEST_WORDS = 2
_CAUSED = b"The above exception was the direct cause of the following exception"
_PASSES_RESULTS = frozenset(("pool", "_base", "py_utils", "worker", "process", "thread"))
"""Files that raise again what was raised in another process, of which the text above has the traceback."""


@dataclass(frozen=True, kw_only=True)
class LastError:
    """The last line of a log that states an error."""

    text: str
    """The line, without logins and at most 300 characters long."""
    line: int
    message: str = ""
    """The error from its class on, with the lines that belong to it, in one line."""
    frames: tuple[CodeFrame, ...] = ()
    """The frames of the traceback above it, the innermost last."""
    ends_log: bool = False
    """Whether nothing comes behind its line."""
    above: bytes = field(default=b"", repr=False, compare=False)
    """The text above its line, at most 24 000 bytes."""
    log_end: bytes = field(default=b"", repr=False, compare=False)
    """The end of the log, at most 200 000 bytes: other processes and earlier lines state reasons there."""


class LastErrorReader:
    """Finds the last error of a log (a `LogReader`)."""

    def __init__(self) -> None:
        self.error: LastError | None = None
        self._lines = 0
        self._around = b"", b""

    @property
    def hints(self) -> frozenset[bytes]:
        """It looks at every block, since any word may end in `Error`."""
        return frozenset()

    def feed(self, block: LogBlock, present: frozenset[bytes]) -> None:  # noqa: ARG002 - a `LogReader`
        """Look for the last error of a block."""
        if any(mark in block.distinct for mark in _MARKS):  # none of them has a digit
            text = block.text
            for pattern, launched in ((_NAMED, False), (_PLAIN, False), (_NAMED, True)):
                if launched and self.error is not None:
                    break
                if (last := self._last_line(text, pattern, launched=launched)) is not None:
                    self.error = last
                    break
        self._lines += block.fresh_lines

    def finish(self) -> None:
        """Read the message and the traceback of the last error."""
        if self.error is not None:
            above, own = self._around
            self.error = replace(
                self.error,
                message=_read_message(own),
                frames=_find_frames(above, own),
                above=above,
                ends_log=not own.partition(b"\n")[2].strip(),
            )

    def _last_line(self, text: bytes, pattern: re.Pattern[str], *, launched: bool) -> LastError | None:
        end = len(text)
        for _ in range(200):
            at = max(text.rfind(mark, 0, end) for mark in _MARKS)
            if at < 0:
                return None
            start = text.rfind(b"\n", 0, at) + 1
            stop = text.find(b"\n", at)
            line = text[start : stop if stop >= 0 else len(text)][:4_000].decode("utf-8", "replace").strip()
            stated = pattern.search(line)
            is_named = _NAMED.match(line) is not None  # whatever words follow
            is_error = stated and (is_named or not (_NO_ERROR.search(line) or _MENTION.search(line[: stated.end()])))
            is_error = is_error and not _CONDITIONAL.search(line)
            says_little = bool(LAUNCHER_ERROR.search(line) or _CODE_LINE.search(line)) or _is_ignored(text, start)
            if is_error and launched == says_little:
                self._around = text[max(0, start - _BEFORE) : start], text[start : start + _BEHIND]
                return LastError(text=redact_secrets(line[:_LONGEST]), line=self._lines + text.count(b"\n", 0, at) + 1)
            end = start
        return None


def _is_ignored(text: bytes, at: int) -> bool:
    """Whether the traceback of the line at `at` is one that Python prints of a destructor, and ignores."""
    begin = text.rfind(b"Traceback (most", max(0, at - _BEFORE), at)
    if begin < 0 or b"\n\n" in text[begin:at]:
        return False
    return b"Exception ignored in" in text[max(0, begin - 300) : begin].rstrip().rpartition(b"\n")[2]


def _find_frames(above: bytes, own: bytes) -> tuple[CodeFrame, ...]:
    """The frames of an error; those of the process where it arose, when another one raised it again."""
    frames = tuple(list_frames_above(above, len(above)))
    line = own.partition(b"\n")[0].decode("utf-8", "replace")
    named = _NAMED.search(line)
    if not (frames and named) or not _PASSES_RESULTS.intersection(frames[-1].parts[-1:]):
        return frames
    first = above.rfind(line[named.start() :].strip().encode(), 0, max(above.rfind(_CAUSED), 0))
    return tuple(list_frames_above(above, first)) if first > 0 else frames


def _read_message(text: bytes) -> str:
    """The error that begins in the first line of a text, from its class on, in one line without ranks."""
    decoded = _RANK.sub("", text.decode("utf-8", "replace"))
    named = _NAMED.search(decoded.partition("\n")[0])
    decoded = decoded[named.start() if named else 0 :]
    end = _END.search(decoded)
    return " ".join(decoded[: end.start() if end else len(decoded)].split())


def complete_raise(error: LastError) -> str:
    """Return a traceback with the message that its last line of code raises, where the log ends there; else empty."""
    raised = _RAISED.match(error.text)
    if raised is None:
        return ""
    lines = ["Traceback (most recent call last):"]
    for frame in error.frames:
        lines += [f'  File "{frame.path}", line {frame.line}, in {frame.function}', f"    {frame.code}"]
    return "\n".join([*lines, f"{raised['name']}: {raised['text']}", ""])


def redact_secrets(text: str) -> str:
    """Return a line of a log without logins in addresses and without what looks like an access token."""
    return re.sub(r"\b(?:hf_|gh[opsu]_|github_pat_|sk-|glpat-|xox[bp]-|AKIA)[\w-]{8,}", "***", redact_credentials(text))


def is_only_mentioned(line: str, *, failed: bool) -> bool:
    """Whether a line tells of a failure that did not happen here: a changelog, or one that was handled.

    Args:
        line: the line of the log.
        failed: whether the log has a traceback or any other error.
    """
    return bool(_CONDITIONAL.search(line)) or (not failed and bool(_MENTION.search(line) or _HANDLED.search(line)))


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
