"""A shared library as its ELF file describes it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from knowngood.fatbin import Code


@dataclass(frozen=True, kw_only=True)
class Library:
    """What the dynamic linker reads of a file."""

    path: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    """DT_RPATH: looked at before LD_LIBRARY_PATH."""
    runpath: tuple[str, ...] = ()
    """DT_RUNPATH: looked at after it."""
    defined: frozenset[bytes] = frozenset()
    undefined: Mapping[bytes, str] = field(default_factory=dict)
    """Names in the order of its table, with their versions (or none); weak ones, which may stay so, are left out."""
    called: frozenset[bytes] = frozenset()
    """Those undefined that are only called, and so could be bound then; none where it asks for all at once."""
    demands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Library -> versions of its symbols that this one was linked with: `libc.so.6` -> `GLIBC_2.34`."""
    versions: frozenset[str] = frozenset()
    """Versions of symbols that it has."""
    importable: bool = False
    """Python imports it as a module."""
    numpy_1: bool = False
    """It asks for the C interface of NumPy 1 only."""
    code: Mapping[Code, int] = field(default_factory=dict)
    """The GPU code of a fatbin -> how many fatbins have just that; the most frequent first."""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]

    def demanded(self, prefix: str) -> str | None:
        """The newest version of a family that it needs: `GLIBC_` gives `2.34`."""
        return newest(prefix, (version for versions in self.demands.values() for version in versions))

    def has(self, prefix: str) -> str | None:
        """The newest version of a family that it has."""
        return newest(prefix, self.versions)


def newest(prefix: str, versions: Iterable[str]) -> str | None:
    """The newest of the versions that begin with `prefix`, without it."""
    found = [
        version.removeprefix(prefix)
        for version in versions
        if re.fullmatch(re.escape(prefix) + r"\d+(\.\d+)*", version)
    ]
    return max(found, key=number, default=None)


def number(version: str) -> tuple[int, ...]:
    """`2.34` as something to compare."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
