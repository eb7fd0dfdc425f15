"""What else a log tells of trouble or of health: its end, warnings, lost files, nan losses, AMD GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.last_errors import LAUNCHER_ERROR, LastError, is_only_mentioned, redact_secrets
from knowngood_diagnose.failures.logs.log_scan import LogBlock
from knowngood_facts.compat.incident import Fix, Incident, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame

_END = 32_000
"""How many bytes at the end are looked at: a program that ends by a failure says so there."""
_KEPT = 200_000
"""How many bytes at the end may be asked for by what looks for a reason."""
_SHOWN = 300
_SIGN = lazy_pattern(
    r"\bassert(?:ion)?\b.{0,400}\bfailed\b|\*\*\* .*(?:\bStop\b|Error \d)|\bfatal\b|\bfail(?:ed|ure)\b|\bunreachable\b"
    r"|\b(?:connection|permission|access) (?:was )?(?:refused|denied|reset)\b|\bno such (?:file|host|device)\b"
    r"|\bunable to\b|\b(?:cannot|could not|couldn't|can't)\b|\bcore dumped\b|\baborted\b|\bkilled\b|\bnot recognized\b"
    r"|\bexit(?:ed with)? (?:code|status) [1-9]|\breturned non-zero\b|\berror\b"
    r"|\bNVRM: |\bno devices were found\b|\bInsufficient nvidia\.com/gpu\b|\bevicted\b|\bpreempted\b",
    re.IGNORECASE,
)
_NO_SIGN = lazy_pattern(
    r"\b(?:0|no|without|zero) (?:\w+ )?(?:errors?|failures?|failed)\b"
    r"|\b(?:errors?|failures?|failed)\b['\"]?[:=] ?(?:0\b|none|false|\d+\.\d)"
    r"|\berror[ _-](?:rate|bars?|margin|feedback)\b"
    r"|\b(?:mean|squared|absolute|relative|root|character|word|phone\w*) error\b"
    r"|\b(?:ignor|skipp|retry|resum|recover|autotun)\w*\b|\bonly a warning\b"
    r"|\busing the (?:latest )?cached\b|\bharmless\b|\bsucce(?:ss|eded)"
    r"|\bunable to register \w+ factory\b|\bunable to initialize backend '|\bcannot dlopen some gpu libraries\b"
    r"|^\s*-- could not find\b"
    r"|\bcould not find (?:cuda drivers|tensorrt)\b|\bNET/Plugin\b.{0,80}\blibnccl-net",
    re.IGNORECASE,
)
"""Words beside which a sign is none: a measure called error, a count of none, what the program dealt with, and what
TensorFlow (a factory that is registered twice, a GPU that it lacks), JAX (other back ends) and NCCL (no plugin of a
vendor's network) say where all is well.
"""
_LOSS = lazy_pattern(
    r"(?<![^\W_])loss(?:_\w{1,30}| (?:train|training|eval|val|test)\b(?: \(\w{1,20}\))?)?"
    r"['\"]?(?: is|\]|\)|:|[ \t]{0,40}=)?[ \t]{0,40}"
    r"['\"]?(?:tensor\()?-?\d+(?:\.\d|e-\d)",
    re.IGNORECASE,
)
_CLEAN_END = lazy_pattern(
    r"\btrain_runtime\b|\btraining (?:is |has )?(?:been )?(?:done|completed?|finished|ended)\b"
    r"|\b\d+ passed\b.{0,60}\bin \d|^Successfully installed \S|^Requirement already satisfied: "
    r"|\bexit(?:ed)?(?: with)?(?: code| status)?:? 0\b|\b(?:completed|finished) successfully\b"
    r"|^(?:all )?(?:done|finished|success)[.!]?$",
    re.IGNORECASE,
)
"""Lines with which a program says that it came to its end."""


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

    def find_health(self) -> LastError | None:
        """Return the last line that shows a run in health, a loss or a clean end; `None` without any.

        It means something only in a log that has no error and no sign of trouble.
        """
        text = self._last.text
        start = max(0, len(text) - _END)
        number = self._above + text.count(b"\n", 0, start) + 1
        lines = text[start:].decode("utf-8", "replace").split("\n")
        for place in range(len(lines) - 1, -1, -1):
            line = lines[place].strip()
            if _CLEAN_END.search(line) or _LOSS.search(line):
                return LastError(text=redact_secrets(line)[:_SHOWN], line=number + place)
        return None


def _tells_of_trouble(line: str) -> bool:
    return (
        bool(_SIGN.search(line))
        and not _NO_SIGN.search(line)
        and not is_warning([line])
        and not is_only_mentioned(line, failed=False)
    )


_WARNING = lazy_pattern(
    r"(?<!NCCL )\bWARN(?:ING)?\b|Warning:|^\s*(?:\[rank\d+\]:)?\[?W\d{0,4} |: W tensorflow|\bwarnings\.warn\("
    r"|some optimizations will not be enabled|Error caught was:|compiled using NumPy 1\.x|_ARRAY_API not found"
    r"|Could not load library lib(?:nvrtc|cudnn)(?!.*\bsymbol\b)"
    r"|\bfall(?:s|ing)?[ -]?back\b|^CUDA extension not installed|^Cannot import \S.* module for custom nodes:"
)
"""Lines with which a program says that it goes on without something."""
_GOES_ON = lazy_pattern(
    r"some optimizations will not be enabled|Error caught was:|Failed to initialize NumPy: No module"
    r"|Could not load library libnvrtc|errno: 97 - Address family not supported by protocol"
)
"""Lines after which a program always goes on: they are no failure unless a later error names the same thing.

Errno 97 is torch's first attempt by IPv6, on a machine without it; the next one is by IPv4.
"""
_ERROR_CLASS = lazy_pattern(r"^(?:[\w.]+\.)?(?P<name>(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Exit|Failure))(?::|$)")
_STOPPED = frozenset(("KeyboardInterrupt", "SystemExit", "Exit", "CancelledError", "BrokenPipeError"))
"""Errors that say nothing of why a program ended."""
_PROBE = lazy_pattern(r"^_?(?:is|has|have|check)_\w*(?:available|installed|triton)$")
_OF_GPU = lazy_pattern(
    r"cuda|gpu|nvcc|nvidia|nvml|device|kernel|driver|\bcpu\b|half|bfloat16|bf16|float16|fp16|fp8|triton|nccl|gloo|dtensor"
    r"|\.so\b|\.dll|DLL|symbol|operator|not implemented for|attention|attn|quanti[sz]|4-?bit|8-?bit|compile|ninja|build"
    r"|wheel|setup\.py|distributed|rendezvous|c10d|socket|timed? ?out|connect|numpy|dtype",
    re.IGNORECASE,
)
_FULL_MEMORY = lazy_pattern(r"out of memory|OutOfMemory", re.IGNORECASE)


def is_warning(lines: Sequence[str]) -> bool:
    """Whether all lines that show a failure only warn of it."""
    return bool(lines) and all(_WARNING.search(line) for line in lines)


def goes_on(component: str, lines: Sequence[str], line: int, error: LastError | None) -> bool:
    """Whether all lines that show a failure are ones after which a program goes on, and no later error is of the same.

    Args:
        component: what the lines are about, a package or an `OwnComponent`.
        lines: the lines that show the failure.
        line: the first of them.
        error: the last error of the log.
    """
    if not lines or not all(_GOES_ON.search(text) for text in lines):
        return False
    if error is None or error.line <= line or _GOES_ON.search(error.text):
        return True
    return component.replace("-", "_").lower() not in error.message.replace("-", "_").lower()


def is_probe(frames: Sequence[CodeFrame]) -> bool:
    """Whether a traceback ends in a function that only looks whether something is there."""
    return bool(frames) and bool(_PROBE.match(frames[-1].function))


def is_destructor(frames: Sequence[CodeFrame]) -> bool:
    """Whether a traceback is of an object that is thrown away: it follows another error, and Python ignores it."""
    return any(frame.function == "__del__" for frame in frames)


def is_overtaken(component: str, line: int, error: LastError | None) -> bool:
    """Whether the last error of a log tells of something else than a warning above it.

    Args:
        component: what the warning is about, a package or an `OwnComponent`.
        line: the line of the warning.
        error: the last error of the log.
    """
    named = _ERROR_CLASS.match(error.message) if error is not None else None
    if error is None or named is None or error.line <= line or named["name"] in _STOPPED:
        return False
    if LAUNCHER_ERROR.search(error.message) or _WARNING.search(error.text):
        return False
    if _FULL_MEMORY.search(error.message):
        return True
    module = component.replace("-", "_").lower()
    if any(module in frame.installed[:1] for frame in error.frames):
        return False
    return module not in error.message.replace("-", "_").lower() and not _OF_GPU.search(error.message)


_LOST = lazy_pattern(
    r"^(?:FileNotFoundError|NotADirectoryError|OSError|IOError): .{0,80}?['\"]?[^'\"]{0,300}"
    r"(?:site|dist)-packages[/\\]{1,4}(?P<top>\w{1,60})[/\\]{1,4}(?P<file>[^'\"]{1,200})"
)
_SYMBOL = lazy_pattern(r": (?:undefined )?symbol\b|: version `")
"""The dynamic linker's words of a library that is there, and of another release."""


@dataclass(frozen=True, kw_only=True)
class LostFile:
    """A file that a package looks for in its own folder."""

    top: str
    """The folder of the package in site-packages."""
    file: str
    """Its path in that folder, with slashes."""
    frame: CodeFrame
    """The code of the package that looks for it."""


def find_lost_file(error: LastError | None) -> LostFile | None:
    """Return the file of a package's own that an error misses; `None` for any other error."""
    lost = _LOST.match(error.message) if error is not None else None
    frames = [frame for frame in error.frames if frame.installed] if error is not None else []
    if lost is None or not frames or _SYMBOL.search(lost["file"]) or frames[-1].installed[0] != lost["top"]:
        return None
    return LostFile(top=lost["top"], file=re.sub(r"[/\\]+", "/", lost["file"]), frame=frames[-1])


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


_OF_CUDA = lazy_pattern(r"\b(?:CUDA|nvcc|nvidia|NVIDIA|cu1[0-9]\w*|TORCH_CUDA_ARCH_LIST|CUDA_HOME|libcu\w+)\b")
_NAMELESS = frozenset((OwnComponent.EXTENSION, OwnComponent.CUDA))
_NO_BUILDS = frozenset(OwnComponent) - _NAMELESS
"""What is no package of which there are builds for CUDA and for ROCm."""
_OF_ROCM = lazy_pattern(r"\b(?:ROCm|rocm|HIP|hip|AMD)\b")
_STATES_HIP = lazy_pattern(r"\bHIP (?:error|out of memory)|\bhip(?:Error|blas)\w*|\bHIPBLAS|\bROCm\b")


def is_rocm(versions: Mapping[str, Sequence[str]], error: LastError | None) -> bool:
    """Whether the torch of a log, or its last error, is of ROCm."""
    if any("+rocm" in version for version in versions.get("torch", ())):
        return True
    return error is not None and bool(_STATES_HIP.search(error.message))


def fit_to_rocm(incident: Incident) -> Incident | None:
    """Return a failure with the remedies that an AMD GPU may take; `None` where all may help it, or no build fails."""
    if incident.component in _NO_BUILDS:
        return None
    fixes = [fix for fix in incident.fix if not _OF_CUDA.search(fix.note) or _OF_ROCM.search(fix.note)]
    if len(fixes) == len(incident.fix):
        return None
    what = "the extension" if incident.component in _NAMELESS else incident.component
    note = (
        f"This torch is one for ROCm: take the build of {what} for the same ROCm (its own instructions name it; "
        "python -c 'import torch; print(torch.version.hip)' shows which), or do without it"
    )
    because = f"{incident.because} What is said of CUDA here goes for ROCm in its place."
    return replace(incident, because=because, fix=(Fix(change={}, note=note), *fixes))
