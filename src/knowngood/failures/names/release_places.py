"""Versions of a log as places among the releases of a package's atlas, and releases as ranges. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache

from packaging.version import InvalidVersion, Version


def neighbours_of_version(version: str, releases: Sequence[str]) -> tuple[int, ...]:
    """Return the places of the releases that a version may be like, the older first.

    One when it is among the releases. A version between two of them, such as a withdrawn release, may be like either.
    """
    place = place_of_version(version, releases)
    if place is None:
        return ()
    is_read = place >= 0 and _parsed_releases(tuple(releases))[place] == Version(version.partition("+")[0])
    return (place,) if is_read or place + 1 == len(releases) else (place, place + 1)


def place_of_version(version: str, releases: Sequence[str]) -> int | None:
    """Return the place of a version among releases, oldest first; `None` for a text that is no version.

    A version between two releases, such as a development version, is at the place of the older one; one that is older
    than all is at -1.
    """
    try:
        wanted = Version(version.partition("+")[0])
    except InvalidVersion:
        return None
    return bisect_right(_parsed_releases(tuple(releases)), wanted) - 1


@cache
def _parsed_releases(releases: tuple[str, ...]) -> list[Version]:
    return [Version(text) for text in releases]


def ranges_of_mask(mask: int, releases: Sequence[str]) -> list[str]:
    """Return a specifier for each run of consecutive releases, oldest first: `<4.39.0`, `>=4.43.0,<4.45.0`, `*`."""
    ranges, place = [], 0
    while mask >> place:
        if not mask >> place & 1:
            place += 1
            continue
        end = place
        while mask >> (end + 1) & 1:
            end += 1
        parts = [f">={releases[place]}"] if place else []
        parts += [f"<{releases[end + 1]}"] if end + 1 < len(releases) else []
        ranges.append(",".join(parts) or "*")
        place = end + 1
    return ranges


def runs_around(mask: int, place: int, releases: Sequence[str]) -> tuple[str, str]:
    """Return the nearest run of a mask below a place, and the nearest above it, as specifiers; empty without one."""
    below = mask & ((1 << max(place, 0)) - 1)
    above = mask >> (place + 1) << (place + 1)
    before, after = ranges_of_mask(below, releases), ranges_of_mask(above, releases)
    return (before[-1] if before else ""), (after[0] if after else "")
