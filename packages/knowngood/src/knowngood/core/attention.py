"""The attention settings of the smoke suite, and the names that people have for them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from knowngood.core.errors import UsageError

ATTENTION: Mapping[str, str] = {
    "sdpa": "sdpa",
    "eager": "eager",
    "sdpa-math": "sdpa",
    "sdpa-flash": "sdpa",
    "sdpa-efficient": "sdpa",
    "sdpa-cudnn": "sdpa",
    "flex": "flex_attention",
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
    "fa4": "flash_attention_4",
}
"""Attention setting (as in the smoke suite) -> transformers' `attn_implementation`."""


def parse_attention(text: str) -> str:
    """Return the attention setting of any of its names; raises `UsageError` with the nearest name."""
    names = {name: name for name in ATTENTION}
    names |= {"flash-attn": "fa2", "sdpa-mem-efficient": "sdpa-efficient"}
    for setting, implementation in ATTENTION.items():
        names.setdefault(implementation.replace("_", "-"), setting)
    name = re.sub(r"[_\s]+", "-", text.strip().lower())
    if name in names:
        return names[name]
    import difflib  # only here, because its import takes a while

    near = difflib.get_close_matches(name, names, 1, 0)[0]
    raise UsageError(f"there is no attention setting {text!r}; the nearest is {near} (known: {', '.join(ATTENTION)})")
