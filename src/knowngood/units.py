"""Bytes as people write them: decimal, as registries and disks are sold. Pure."""

from __future__ import annotations

import re

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|kB|MB|GB)")


def text(size: int | None) -> str:
    """`2.73 GB`, `46.1 MB`, `812 B`; `unknown` for none."""
    if size is None:
        return "unknown"
    for unit, digits in (("GB", 2), ("MB", 1), ("kB", 1)):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:,.{digits}f} {unit}"
    return f"{size} B"


def parse(text: str) -> int:
    """The bytes that a text such as `3.0 GB` says; `ValueError` for anything else."""
    match = _SIZE.fullmatch(text)
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is not a size such as 3.0 GB or 800 MB")
    return round(float(match[1]) * _UNITS[match[2]])
