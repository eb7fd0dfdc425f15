"""Sets of releases as text: places in a list of releases, oldest first, as intervals such as `0-3,5,7-`. Pure."""

from __future__ import annotations


def render_intervals(mask: int, count: int) -> str:
    """Return `0-3,5,7-` for the bits of a mask; an interval that reaches the newest of `count` releases is open."""
    parts: list[str] = []
    place = 0
    while mask >> place:
        if not (mask >> place) & 1:
            place += 1
            continue
        end = place
        while (mask >> (end + 1)) & 1:
            end += 1
        parts.append(f"{place}-" if end == count - 1 else str(place) if end == place else f"{place}-{end}")
        place = end + 1
    return ",".join(parts)


def parse_intervals(text: str, count: int) -> int:
    """Return the mask of `0-3,5,7-`; raises `ValueError` for another text."""
    mask = 0
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin = int(first)
        end = begin if not dash else int(last) if last else count - 1
        mask |= ((1 << (end - begin + 1)) - 1) << begin
    return mask
