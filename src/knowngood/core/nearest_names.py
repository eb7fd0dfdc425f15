"""The name that was probably meant by one with a typing mistake: near in its letters, or none. Pure."""

from __future__ import annotations

from collections.abc import Iterable

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
            mistakes = _count_mistakes(name, other)
            if mistakes <= most and (best is None or (mistakes, other) < best):
                best = mistakes, other
    return best[1] if best else None


def _count_mistakes(one: str, two: str) -> int:
    """The edit distance of two words, in which two exchanged neighbours are one mistake."""
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
