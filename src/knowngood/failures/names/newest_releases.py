"""The remedy that a newer release of a package may be, with the packages that are released together with it. Pure."""

from __future__ import annotations

import re

from knowngood.compat.incident import Fix
from knowngood.core.lazy_patterns import lazy_pattern

_COMPANIONS = {"unsloth": ("unsloth-zoo",), "unsloth-zoo": ("unsloth",), "autoawq": ("autoawq-kernels",)}
"""Packages that are released together, so that one without the other does not fit."""
_UNKNOWN = lazy_pattern(
    r"does(?: not|n't) exist|\binvalid\b|\bunknown\b|\bun(?:supported|recogni[sz]ed|registered)\b"
    r"|\bnot (?:yet |currently )?(?:a )?(?:supported|implemented|recogni[sz]ed|registered|known|valid|available)\b"
    r"|\bnot in the list\b|only (?:supports?|works?)",
    re.IGNORECASE,
)
"""Words with which a package says that it does not know a value, which a newer release may."""


NEWER_OR_OLDER = "a newer release may know it; what was taken away is in the release that the code was written for"
"""What helps where a package does not know a value."""


def upgrade_package(package: str, note: str = "the newest release") -> Fix:
    """Return the remedy of a package's newest release, with what is released together with it."""
    names = (package, *_COMPANIONS.get(package, ()))
    return Fix(change=dict.fromkeys(names, "*"), note=f"{note}: pip install -U {' '.join(names)}")


def is_about_unknown_value(text: str) -> bool:
    """Whether a package's words say that it does not know, or does not support, what it was given."""
    return bool(_UNKNOWN.search(text))
