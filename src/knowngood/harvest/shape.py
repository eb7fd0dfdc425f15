"""How a call passes its arguments: what a walk through a caller's function finds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How a call passes its arguments, and what is done with what it returns."""

    positional: int | None
    """How many without a name; `None` when that is not known."""
    keywords: tuple[str, ...]
    more: bool
    """There may be other keywords."""
    unpacked: int = 0
    """Into how many names the result is unpacked; 0 when it is not."""
    starred: bool = False
    """One of those names takes the rest."""
    constants: tuple[tuple[str, str], ...] = ()
    """Keywords whose value is a constant."""


@dataclass
class Found:
    """What a walk found."""

    shapes: list[Shape] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """What the function raises itself where nothing but what is known leads: its own gate."""
