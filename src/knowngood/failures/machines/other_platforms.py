"""A Mac, which has no CUDA, recognized by the paths of a log. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_MAC = lazy_pattern(r"(?:^|[\s\"'(=])/Users/\w|macosx[_-]\d|-darwin\.so|\barm64-apple|/opt/homebrew/")


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
