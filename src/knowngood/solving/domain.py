"""The values an axis or package can take, in order, and sets of them as the bits of one integer.

`Domain.mask(">=2.6,<3")` finds the set by bisection: a specifier costs a few comparisons, not one a release.
The semantics are PEP 440's, pre-releases included (an incident of a release candidate is an incident).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache

from packaging.version import InvalidVersion, Version

from knowngood.errors import UsageError

ANY, NONE, SOME = "any", "none", "*"
"""Conditions that are no specifier: everything, the package is absent, the package is there in any version."""

_CLAUSE = re.compile(r"\s*(===|~=|==|!=|<=|>=|<|>)\s*([^,\s]+)\s*")


class Domain:
    """Versions in ascending order; the last bit, where `optional`, is "not there"."""

    unordered = False

    def __init__(
        self, name: str, values: Iterable[str], *, optional: bool = False, key: Callable[[str], str] = str
    ) -> None:
        self.name = name
        pairs = sorted(((Version(key(value)), value) for value in set(values)), key=lambda pair: pair[0])
        self.keys = [pair[0] for pair in pairs]
        self.values: tuple[str, ...] = tuple(pair[1] for pair in pairs)
        self.index = {value: place for place, value in enumerate(self.values)}
        self.some = (1 << len(self.values)) - 1
        self.absent = 1 << len(self.values) if optional else 0
        self.all = self.some | self.absent
        self._key = key
        self._masks: dict[str, int] = {}
        self.nearest: dict[tuple[int, int], Sequence[int]] = {}
        """What `nearest` found."""

    @cached_property
    def final(self) -> int:
        """The versions that are no pre-releases; all, where there are only those."""
        final = sum(1 << place for place, key in enumerate(self.keys) if not key.is_prerelease)
        return final or self.some

    def text(self, bit: int) -> str:
        """A value's name by its place."""
        return self.values[bit] if bit < len(self.values) else NONE

    def texts(self, mask: int) -> list[str]:
        """The names of a set."""
        return [self.text(bit) for bit in bits(mask)]

    def mask(self, condition: str) -> int:
        """The values for which a condition holds; raises `UsageError` when it cannot be read."""
        known = self._masks.get(condition)
        if known is None:
            known = self._masks[condition] = self._read(condition)
        return known

    def _read(self, condition: str) -> int:
        text = condition.strip()
        if text in (ANY, SOME, ""):
            return self.all if text == ANY else self.some
        if text in (NONE, "!" + NONE):
            return self.absent if text == NONE else self.some
        if text in self.index:
            return 1 << self.index[text]
        found = self.some
        for clause in text.split(","):
            if clause.strip():
                found &= self._clause(clause, condition)
        return found

    def _clause(self, clause: str, whole: str) -> int:  # noqa: PLR0911 - one an operator
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            raise UsageError(
                f"{clause.strip()!r} in {whole!r} is no condition on {self.name}; one is written like >=2.6"
            )
        operator, text = match[1], match[2]
        if operator in ("==", "!=") and text.endswith(".*"):
            found = self._prefix(_version(text[:-2], whole))
            return found if operator == "==" else self.some & ~found
        version = _version(self._key(text) if self._key is not str else text, whole)
        if operator == "~=":
            release = version.release[:-1]
            return self._at_least(version) & self._prefix(Version(".".join(map(str, release))))
        if operator in ("==", "==="):
            return self._equal(version)
        if operator == "!=":
            return self.some & ~self._equal(version)
        if operator == ">=":
            return self._at_least(version)
        if operator == "<=":
            return self.some & ~self._above(version) | self._equal(version)
        if operator == "<":
            below = self.some & ~self._at_least(version)
            return below if version.is_prerelease else below & ~self._prefix(version, before=version)
        above = self._above(version)
        return above if version.is_postrelease or version.is_prerelease else above & ~self._posts(version)

    def _at_least(self, version: Version) -> int:
        return self.some & ~((1 << bisect_left(self.keys, version)) - 1)

    def _above(self, version: Version) -> int:
        return self.some & ~((1 << bisect_right(self.keys, version)) - 1)

    def _equal(self, version: Version) -> int:
        """PEP 440: a local part counts only where the specifier has one."""
        low, high = bisect_left(self.keys, version), bisect_right(self.keys, version)
        found = ((1 << high) - 1) & ~((1 << low) - 1)
        if version.local is None:
            place = high
            while place < len(self.keys) and self.keys[place].local and _public(self.keys[place]) == version:
                found |= 1 << place
                place += 1
        return found

    def _prefix(self, version: Version, before: Version | None = None) -> int:
        """`==version.*`; with `before` only its pre-releases (what `<version` leaves out)."""
        wanted = version.release
        found = 0
        for place, key in enumerate(self.keys):
            release = (key.release + (0,) * len(wanted))[: len(wanted)]
            if key.epoch == version.epoch and release == wanted:
                if before is not None and not (key.is_prerelease and Version(key.base_version) == before):
                    continue
                found |= 1 << place
        return found

    def _posts(self, version: Version) -> int:
        return sum(
            1 << place
            for place, key in enumerate(self.keys)
            if (key.is_postrelease or key.local) and Version(key.base_version) == Version(version.base_version)
        )


def bits(mask: int) -> Iterator[int]:
    """The places of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@lru_cache(maxsize=10_000)
def holds(condition: str, version: str) -> bool:
    """Whether one version fulfils a condition."""
    return bool(Domain("it", [version]).mask(condition))


def nearest(domain: Domain, wanted: int, anchor: int) -> Sequence[int]:
    """The places of `wanted`, nearest to those of `anchor` first; of two as near, the newer; absence last."""
    known = domain.nearest.get((wanted, anchor))
    if known is None:
        if len(domain.nearest) > _KEPT:
            domain.nearest.clear()
        known = domain.nearest[wanted, anchor] = _nearest(domain, wanted, anchor)
    return known


_KEPT = 5_000
"""Entries after which a cache of a long batch starts anew."""


def _nearest(domain: Domain, wanted: int, anchor: int) -> Sequence[int]:
    if domain.unordered:
        return list(bits(wanted))
    places = list(bits(anchor & domain.some))
    low, high = (min(places), max(places)) if places else (len(domain.values), len(domain.values))

    def distance(place: int) -> tuple[bool, int, int]:
        away = max(low - place, place - high, 0)
        return place >= len(domain.values), away, -place

    return sorted(bits(wanted), key=distance)


def _version(text: str, whole: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} in {whole!r} is not a version (PEP 440)") from None


def _public(version: Version) -> Version:
    return Version(version.public)
