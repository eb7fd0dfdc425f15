"""Which releases of a package the Python of a log takes, by what they declare. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version


def mask_of_refused(pythons: Sequence[str], releases: Sequence[str], bounds: Mapping[str, str]) -> int:
    """Return the releases that the Pythons of a log cannot have installed, as bits; 0 where the log states none.

    Args:
        pythons: the Pythons in the log.
        releases: the releases of a package, oldest first.
        bounds: release -> the Pythons that it takes.
    """
    refused: dict[str, bool] = {}
    mask = 0
    for place, release in enumerate(releases):
        text = bounds.get(release, "")
        if text not in refused:
            refused[text] = bool(pythons) and not any(_takes(text, python) for python in pythons)
        mask |= refused[text] << place
    return mask


def find_newest_for(pythons: Sequence[str], bounds: Mapping[str, str]) -> str:
    """Return the newest final release that a Python of the log takes; empty when none is known."""
    final = [text for text in bounds if not Version(text).is_prerelease]
    taken = [text for text in final if any(_takes(bounds[text], python) for python in pythons)]
    return max(taken, key=Version, default="")


_LOWER = frozenset((">=", ">", "~=", "=="))
"""What bounds a Python from below: what a release says of newer Pythons is often passed over."""


def _takes(bound: str, python: str) -> bool:
    """Whether a release takes a Python, of which the log may state only the first two numbers."""
    try:
        specifier = SpecifierSet(bound)
    except InvalidSpecifier:
        return True
    low = SpecifierSet(",".join(str(part) for part in specifier if part.operator in _LOWER))
    whole = python if python.count(".") > 1 else f"{python}.99"
    return low.contains(whole, prereleases=True) or low.contains(python, prereleases=True)
