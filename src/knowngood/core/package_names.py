"""Names of distributions, as PEP 503 normalizes them. Pure."""

from __future__ import annotations

import re

_SEPARATORS = re.compile(r"[-_.]+")


def canonical_name(name: str) -> str:
    """Return the name of a distribution in lower case and with single dashes (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()
