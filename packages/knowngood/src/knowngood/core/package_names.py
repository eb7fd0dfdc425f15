"""Names of distributions, as PEP 503 normalizes them, and requirements (PEP 508). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_SEPARATORS = lazy_pattern(r"[-_.]+")
_DEEPEST = 20
"""The most parentheses that a marker may have around a part. Published ones have two; the parser goes down by calls."""


def canonical_name(name: str) -> str:
    """Return the name of a distribution in lower case and with single dashes (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


def parse_requirement_text(text: str) -> Requirement:
    """Return the requirement in a text; raises `InvalidRequirement` for one that is none or is nested too deeply."""
    from packaging.requirements import InvalidRequirement, Requirement

    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth > _DEEPEST:
            raise InvalidRequirement(f"it has more than {_DEEPEST} parentheses around a part of its marker")
    return Requirement(text)
