"""Which releases a target can install: their Requires-Python, and the tags of their wheels. Pure.

`packaging.tags` would list some 1,500 tags of a target; a wheel's tags are judged one by one here instead, and each
distinct tag once.
"""

from __future__ import annotations

import re
from functools import lru_cache

from knowngood.compat.dependency_markers import ResolutionTarget
from knowngood.core.lazy_patterns import lazy_pattern

_PLATFORM = lazy_pattern(r"(?:many)?linux(?:_(\d+)_(\d+)|1|2010|2014)?_(.+)")
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def tag_fits(tag: str, target: ResolutionTarget) -> bool:
    """Whether a target can install a wheel with this tag, `cp311-cp311-manylinux_2_17_x86_64`.

    Each of the tag's three parts may be several, joined by dots.
    """
    return _tag_fits(tag, target.minor, target.machine, target.glibc, target.free_threaded)


@lru_cache(maxsize=20_000)
def _tag_fits(tag: str, python: str, machine: str, glibc: str | None, free_threaded: bool) -> bool:
    parts = tag.rsplit("-", 2)
    if len(parts) != 3:
        return False
    interpreters, abis, platforms = (part.split(".") for part in parts)
    return any(_platform_fits(platform, machine, glibc) for platform in platforms) and any(
        _python_fits(interpreter, abi, python, free_threaded) for interpreter in interpreters for abi in abis
    )


def _platform_fits(platform: str, machine: str, glibc: str | None) -> bool:
    if platform == "any":
        return True
    match = _PLATFORM.fullmatch(platform)
    if match is None or match[3] != machine:
        return False
    least = (int(match[1]), int(match[2])) if match[1] else _LEGACY.get(platform.partition("_")[0], (0, 0))
    return glibc is None or least <= tuple(int(number) for number in glibc.split(".")[:2])


def _python_fits(interpreter: str, abi: str, python: str, free_threaded: bool) -> bool:
    match = re.fullmatch(r"(py|cp)(\d)(\d*)", interpreter)
    if match is None:
        return False
    major, minor = (int(number) for number in python.split("."))
    kind, own_major, own_minor = match[1], int(match[2]), int(match[3]) if match[3] else None
    if own_major != major or (own_minor is not None and own_minor > minor):
        return False
    if kind == "py":
        return abi == "none"
    if abi == "none":
        return own_minor in (None, minor)
    if abi == "abi3":
        return not free_threaded
    # The ABI of Python 3.7 and older has a letter, as in cp37m.
    names = (f"cp{major}{minor}t",) if free_threaded else (f"cp{major}{minor}", f"cp{major}{minor}m")
    return own_minor == minor and abi in names
