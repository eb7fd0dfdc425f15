"""A Mac, which has no CUDA, and Windows, recognized by the paths of a log. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.compat.incident import Fix, Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_MAC = lazy_pattern(r"(?:^|[\s\"'(=])/Users/\w|macosx[_-]\d|-darwin\.so|\barm64-apple|/opt/homebrew/")
_WINDOWS = lazy_pattern(r"\bWindowsPath\(|[A-Za-z]:\\[^\n\"']{1,200}\\bitsandbytes\\")
_NO_LIBRARY = lazy_pattern(r"libbitsandbytes_\w+\.so\b|\blibcudart\.so\b")
_FIRST_ON_WINDOWS = "0.43"
"""bitsandbytes' first release with libraries (.dll) for Windows: the wheels of 0.42.0 and 0.43.0."""


def is_mac(text: str) -> bool:
    """Whether the paths of a log are those of a Mac."""
    return bool(_MAC.search(text))


def describe_without_cuda(incident: Incident, error: LastError) -> Incident | None:
    """Say that a Mac has no CUDA; `None` for another machine."""
    if not is_mac(error.log_end.decode("utf-8", "replace")):
        return None
    return replace(
        incident,
        title=f"This is a Mac, which has no CUDA: {incident.title[:1].lower()}{incident.title[1:]}",
        because=(
            "The paths in the log (/Users, macosx) are those of a Mac. It has no NVIDIA GPU, so that what "
            "needs CUDA, such as "
            "quantization in 8 and 4 bits by older releases of bitsandbytes, cannot run there."
        ),
        fix=(
            advise(
                "Without it: device 'mps' (torch.backends.mps.is_available()) or 'cpu', no load_in_8bit or "
                "load_in_4bit, optim='adamw_torch'"
            ),
            advise("pip install --upgrade bitsandbytes: newer releases have wheels for macOS, with fewer functions"),
            advise("A machine with an NVIDIA GPU (a cloud's, Colab)"),
        ),
    )


def describe_bitsandbytes(incident: Incident, error: LastError) -> Incident | None:
    """Say that a bitsandbytes has nothing for this platform; `None` where the paths are those of Linux."""
    text = error.log_end.decode("utf-8", "replace")
    if not (_WINDOWS.search(text) and _NO_LIBRARY.search(text)):
        return describe_without_cuda(incident, error)
    return replace(
        incident,
        title=f"This bitsandbytes has no library for Windows: a release before {_FIRST_ON_WINDOWS} runs",
        because=(
            "It looks for files of Linux (.so) on Windows and finds none that it can load. Its wheels have libraries "
            f"for Windows (.dll) since {_FIRST_ON_WINDOWS}."
        ),
        fix=(
            Fix(change={"bitsandbytes": f">={_FIRST_ON_WINDOWS}"}, note="has libraries for Windows", cost="an upgrade"),
            advise("Linux, or WSL on the same machine, when an older release is wanted"),
        ),
    )
