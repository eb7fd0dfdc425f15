"""The name that was probably meant by one with a typing mistake: near in its letters, or none.

The releases that are nearest to one that does not exist: near in their order, not in their spelling.
"""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from knowngood.core.lazy_patterns import lazy_pattern

_LETTERS_PER_MISTAKE = 4
"""A name may have one mistake for every so many letters, and one in any case."""


def find_nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that the fewest mistakes turn into `name`; `None` when it takes too many.

    A mistake is a letter that is missing, too much, wrong, or in the place of its neighbour.
    """
    most = max(1, len(name) // _LETTERS_PER_MISTAKE)
    best: tuple[int, str] | None = None
    for other in names:
        if abs(len(other) - len(name)) <= most and other != name:
            mistakes = count_mistakes(name, other)
            if mistakes <= most and (best is None or (mistakes, other) < best):
                best = mistakes, other
    return best[1] if best else None


def count_mistakes(one: str, two: str) -> int:
    """Return the edit distance of two words, in which two exchanged neighbours are one mistake."""
    before: list[int] = []
    last = list(range(len(two) + 1))
    for place, letter in enumerate(one):
        line = [place + 1]
        for other, wanted in enumerate(two):
            cost = min(line[other] + 1, last[other + 1] + 1, last[other] + (letter != wanted))
            if place and other and letter == two[other - 1] and wanted == one[place - 1]:
                cost = min(cost, before[other - 1] + 1)
            line.append(cost)
        before, last = last, line
    return last[-1]


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
