"""Where the atlas has the name that an error misses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knowngood.facts.atlas_lookup import AtlasLookup


@dataclass(frozen=True, kw_only=True)
class NamePlace:
    """A name that an error misses, as the atlas has it."""

    lookup: AtlasLookup
    dotted: str
    """The name with its module, as `knowngood api` takes it."""
    present: int
    """The releases in which the code of the error would not have failed for want of it, as bits."""
    possible: int
    """The releases in which the error can have come from: those with the module or class, but without the name."""
    what: str
    """What it is, for a sentence: `the name X`, `the keyword y of Z`."""
    refused: int = 0
    """The releases without the name that the Python of the log cannot have installed, as bits."""
    names: Mapping[str, int] = field(default_factory=dict)
    """What is in the same place, with its releases, for a suggestion."""
    uses: tuple[str, ...] = ()
    """How a caller's row of the atlas that uses it begins."""
    keyword: str = ""
    """The keyword that such a use passes."""
    elsewhere: tuple[str, ...] = ()
    """Where else releases without the name have one of that name."""
    words: tuple[str, ...] = ()
    """The deprecation's own words."""
    successor: str = ""
    """What those words name in its place."""
    inherited: bool = False
    """Whether it is the name of a base class in another package than that of the class in the error."""
    unclear: bool = False
    """Whether the sources do not say if a release has a module, because they have not even its folder."""
    derived: bool = False
    """Whether the class in the error is in no package, and its base is told by its name only."""
