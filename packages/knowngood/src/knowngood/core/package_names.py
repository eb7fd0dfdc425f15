"""Names of distributions, as PEP 503 normalizes them. Pure."""

from __future__ import annotations

from knowngood.core.lazy_patterns import lazy_pattern

_SEPARATORS = lazy_pattern(r"[-_.]+")


def canonical_name(name: str) -> str:
    """Return the name of a distribution in lower case and with single dashes (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()
