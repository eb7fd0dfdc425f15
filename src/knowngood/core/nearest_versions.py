"""The releases that are nearest to one that does not exist: near in their order, not in their spelling. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from knowngood.core.lazy_patterns import lazy_pattern

_VERSION = lazy_pattern(r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?")


def find_nearest_versions(wanted: str, versions: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` of `versions`, the nearest to `wanted` first.

    A release that begins with the same numbers is nearer (to 2.6.5 it is 2.6.0, not 2.7.0), then the one with fewer
    releases between, then the older. Pre-releases count only when `wanted` is one, or when there is nothing else.
    `wanted` may be a specifier, of which the first version counts; when it has none, the newest releases are returned.
    """
    known = sorted(versions, key=Version)
    match = _VERSION.search(wanted)
    try:
        version = Version(wanted)
    except InvalidVersion:
        version = Version(match[0]) if match else Version("999999")
    final = [text for text in known if not Version(text).is_prerelease]
    ordered = known if version.is_prerelease or not final else final
    place = sum(Version(text) < version for text in ordered)

    def distance(item: tuple[int, str]) -> tuple[int, int, int]:
        position, text = item
        between = place - 1 - position if position < place else position - place
        return -_common_numbers(version, Version(text)), between, position

    return [text for _, text in sorted(enumerate(ordered), key=distance)[:count]]


def _common_numbers(one: Version, two: Version) -> int:
    """How many numbers of two releases are the same, from the first on."""
    count = 0
    for first, second in zip(one.release, two.release, strict=False):
        if first != second:
            break
        count += 1
    return count
