"""Which known failures of a log are only a warning, after which the program went on and failed of another thing. Pure.

Many programs warn of an extension that does not load or of a GPU that they do not find, and then run on without it.
Such a warning is the cause of the last error only where that error speaks of the same thing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LAUNCHER_ERROR, LastError
from knowngood.failures.logs.logged_errors import CodeFrame

_WARNING = lazy_pattern(
    r"(?<!NCCL )\bWARN(?:ING)?\b|Warning:|^\s*(?:\[rank\d+\]:)?\[?W\d{0,4} |: W tensorflow|\bwarnings\.warn\("
    r"|some optimizations will not be enabled|Error caught was:|compiled using NumPy 1\.x|_ARRAY_API not found"
    r"|Could not load library lib(?:nvrtc|cudnn)"
    r"|\bfall(?:s|ing)?[ -]?back\b|^CUDA extension not installed|^Cannot import \S.* module for custom nodes:"
)
"""Lines with which a program says that it goes on without something."""
_GOES_ON = lazy_pattern(
    r"some optimizations will not be enabled|Error caught was:|Failed to initialize NumPy: No module"
    r"|Could not load library libnvrtc"
)
"""Lines after which a program always goes on: they are no failure unless a later error names the same thing."""
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
