"""The values that an axis or a package can take, in order, and sets of them as the bits of one integer.

`ValueDomain.mask(">=2.6,<3")` is the set of the values that fulfil a PEP 440 specifier. Pre-releases count like other
releases: an incident of a release candidate is an incident. `packaging.SpecifierSet` gives the same sets, but costs a
`check` 0.05 s more: 0.03 s for its import, 0.015 s for testing every release where a bisection suffices.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

from packaging.version import InvalidVersion, Version

from knowngood.core.errors import UsageError
from knowngood.core.lazy_patterns import lazy_pattern

ANY, NONE, SOME = "any", "none", "*"
"""Conditions that are not specifiers: everything; the package is absent; the package is there in any version."""

_CLAUSE = lazy_pattern(r"\s*(===|~=|==|!=|<=|>=|<|>)\s*([^,\s]+)\s*")
_PRE_RELEASE = lazy_pattern(r"^[^+]*(?:[abc]|dev|pre)", re.IGNORECASE)
"""A version with a part for pre-releases in any of its spellings (PEP 440): a, alpha, b, beta, c, rc, pre, dev."""
_NEAREST_LIMIT = 5_000
"""When `nearest_places` has kept more answers, they are dropped, because a batch can be long."""


class ValueDomain:
    """The values of one variable in ascending order.

    A value's place is its index in `values`, and its bit in a mask. In an `optional` domain one more place, after the
    last value, stands for "not installed". `key` turns a value's text into the version that it is compared by.
    """

    def __init__(
        self, name: str, values: Iterable[str], *, optional: bool = False, key: Callable[[str], str] | None = None
    ) -> None:
        self.name = name
        self._key = key
        pairs = sorted(((Version(key(value) if key else value), value) for value in set(values)), key=lambda it: it[0])
        self.keys: Sequence[Version] = [pair[0] for pair in pairs]
        self.values: tuple[str, ...] = tuple(pair[1] for pair in pairs)
        self.index = {value: place for place, value in enumerate(self.values)}
        self.some = (1 << len(self.values)) - 1
        self.absent = 1 << len(self.values) if optional else 0
        self.all = self.some | self.absent
        self._masks: dict[str, int] = {}
        self._nearest: dict[tuple[int, int], Sequence[int]] = {}

    @cached_property
    def final(self) -> int:
        """The mask of the values that are not pre-releases; all values, where there are only pre-releases."""
        final = sum(1 << place for place, key in enumerate(self.keys) if not key.is_prerelease)
        return final or self.some

    def text(self, place: int) -> str:
        """The value at a place as text, `none` for absence."""
        return self.values[place] if place < len(self.values) else NONE

    def texts(self, mask: int) -> list[str]:
        """The values of a mask as text, ascending."""
        return [self.text(place) for place in iterate_bits(mask)]

    def mask(self, condition: str) -> int:
        """The values that fulfil a condition: a specifier, a value, `any`, `none`, `!none` or `*`.

        Raises:
            UsageError: the condition is not one of these.
        """
        mask = self._masks.get(condition)
        if mask is None:
            mask = self._masks[condition] = self._mask(condition.strip())
        return mask

    def _mask(self, condition: str) -> int:
        if condition in (ANY, SOME, ""):
            return self.all if condition == ANY else self.some
        if condition in (NONE, "!" + NONE):
            return self.absent if condition == NONE else self.some
        if condition in self.index:
            return 1 << self.index[condition]
        mask = self.some
        for clause in condition.split(","):
            if clause.strip():
                mask &= self._clause_mask(clause, condition)
        return mask

    def _clause_mask(self, clause: str, condition: str) -> int:  # noqa: PLR0911 - one return for each operator
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            raise UsageError(
                f"{clause.strip()!r} in {condition!r} is not a condition on {self.name}; write for example >=2.6"
            )
        operator, text = match[1], match[2]
        if operator in ("==", "!=") and text.endswith(".*"):
            mask = self._with_prefix(_parse_version(text[:-2], condition))
            return mask if operator == "==" else self.some & ~mask
        version = _parse_version(self._key(text) if self._key else text, condition)
        if operator == "~=":
            prefix = ".".join(map(str, version.release[:-1]))
            return self._at_least(version) & self._with_prefix(Version(prefix))
        if operator in ("==", "==="):
            return self._equal(version)
        if operator == "!=":
            return self.some & ~self._equal(version)
        if operator == ">=":
            return self._at_least(version)
        if operator == "<=":
            return self.some & ~self._above(version) | self._equal(version)
        if operator == "<":
            mask = self.some & ~self._at_least(version)
            return mask if version.is_prerelease else mask & ~self._derived_from(version, "is_prerelease")
        mask = self._above(version)
        if version.is_postrelease or version.is_prerelease:
            return mask
        return mask & ~self._derived_from(version, "is_postrelease") & ~self._derived_from(version, "local")

    def _at_least(self, version: Version) -> int:
        return self.some & ~((1 << bisect_left(self.keys, version)) - 1)

    def _above(self, version: Version) -> int:
        return self.some & ~((1 << bisect_right(self.keys, version)) - 1)

    def _equal(self, version: Version) -> int:
        """The values equal to a version; a local part counts only where the specifier has one (PEP 440)."""
        mask = self._at_least(version) & ~self._above(version)
        if version.local is None:
            mask |= self._where(version, lambda key: bool(key.local) and Version(key.public) == version)
        return mask

    def _with_prefix(self, prefix: Version) -> int:
        """The values that `==prefix.*` means."""
        *numbers, last = prefix.release
        after = ".".join(map(str, [*numbers, last + 1]))
        return self._at_least(_first_of(prefix)) & ~self._at_least(_first_of(Version(f"{prefix.epoch}!{after}")))

    def _derived_from(self, version: Version, kind: str) -> int:
        """The values that are a pre-release, a post-release or a local version of this very version."""
        return self._where(version, lambda key: bool(getattr(key, kind)) and Version(key.base_version) == version)

    def _where(self, version: Version, matches: Callable[[Version], bool]) -> int:
        """The values with the numbers of a version that match."""
        mask = 0
        for place in range(bisect_left(self.keys, _first_of(version)), len(self.keys)):
            key = self.keys[place]
            if key.base_version != version.base_version and Version(key.base_version) != Version(version.base_version):
                break
            mask |= matches(key) << place
        return mask

    def nearest_places(self, wanted: int, anchor: int) -> Sequence[int]:
        """The places of `wanted`, nearest to those of `anchor` first; of two as near, the newer first; absence last."""
        places = self._nearest.get((wanted, anchor))
        if places is None:
            if len(self._nearest) > _NEAREST_LIMIT:
                self._nearest.clear()
            places = self._nearest[wanted, anchor] = self._sorted_by_distance(wanted, anchor)
        return places

    def _sorted_by_distance(self, wanted: int, anchor: int) -> list[int]:
        anchors = list(iterate_bits(anchor & self.some))
        low, high = (anchors[0], anchors[-1]) if anchors else (len(self.values), len(self.values))

        def distance(place: int) -> tuple[bool, int, int]:
            return place >= len(self.values), max(low - place, place - high, 0), -place

        return sorted(iterate_bits(wanted), key=distance)

    def distance(self, place: int, anchor: int) -> int:
        """How many releases lie between a place and the nearest of `anchor`; absence is further than any release."""
        if place >= len(self.values):
            return len(self.values) + 1
        anchors = list(iterate_bits(anchor & self.some))
        return max(anchors[0] - place, place - anchors[-1], 0) if anchors else len(self.values)

    def newest_first(self, mask: int) -> list[int]:
        """The places of a mask: releases before pre-releases, the newest first, absence last."""
        final = list(iterate_bits(mask & self.some & self.final))[::-1]
        early = list(iterate_bits(mask & self.some & ~self.final))[::-1]
        return [*final, *early, *iterate_bits(mask & self.absent)]


class NameDomain(ValueDomain):
    """Names that have no order, such as attention settings; the earlier ones are preferred as a replacement."""

    def __init__(self, name: str, values: Iterable[str]) -> None:
        super().__init__(name, ())
        self.values = tuple(values)
        self.index = {value: place for place, value in enumerate(self.values)}
        self.some = self.all = (1 << len(self.values)) - 1

    def _mask(self, condition: str) -> int:
        return self.some if condition in (ANY, SOME) else super()._mask(condition)

    @property
    def final(self) -> int:
        """The mask of all names: none is a pre-release."""
        return self.some

    def _sorted_by_distance(self, wanted: int, anchor: int) -> list[int]:  # noqa: ARG002 - names have no distance
        return list(iterate_bits(wanted))

    def distance(self, place: int, anchor: int) -> int:  # noqa: ARG002 - names have no distance
        """The place itself: names are in the order of preference."""
        return place


class _OrderedKeys(Sequence[Version]):
    """The versions of texts, each parsed when it is first compared."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._parsed: dict[int, Version] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, place: Any) -> Any:
        key = self._parsed.get(place)
        if key is None:
            key = self._parsed[place] = Version(self._texts[place])
        return key


class ReleaseDomain(ValueDomain):
    """Releases that are in ascending order already: a version is parsed only where a specifier is compared with it."""

    def __init__(self, name: str, versions: Iterable[str]) -> None:
        super().__init__(name, (), optional=True)
        self.values = tuple(versions)
        self.keys = _OrderedKeys(self.values)
        self.index = {value: place for place, value in enumerate(self.values)}
        self.some = (1 << len(self.values)) - 1
        self.absent = 1 << len(self.values)
        self.all = self.some | self.absent

    @cached_property
    def final(self) -> int:
        """The mask of the values that are not pre-releases; all values, where there are only pre-releases."""
        final = 0
        for place, text in enumerate(self.values):
            if text.replace(".", "").isdigit() or not _PRE_RELEASE.search(text):
                final |= 1 << place
        return final or self.some


def iterate_bits(mask: int) -> Iterator[int]:
    """Yield the places of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@lru_cache(maxsize=10_000)
def version_matches(condition: str, version: str) -> bool:
    """Whether one version fulfils a condition.

    Raises:
        UsageError: the condition cannot be read.
        ValueError: the version is not one.
    """
    return bool(ValueDomain("a version", [version]).mask(condition))


@lru_cache(maxsize=10_000)
def specifiers_overlap(one: str, two: str) -> bool:
    """Whether some version fulfils both specifiers.

    It suffices to try the versions that they name, and one just above each.
    """
    names = re.findall(r"\d[^,\s*]*", f"{one},{two}")
    versions = [text.rstrip(".") for text in names]
    above = [f"{text}.0.1" for text in versions if text.replace(".", "").isdigit()]
    domain = ValueDomain("a version", [*versions, *above])
    return bool(domain.mask(one) & domain.mask(two))


def _first_of(version: Version) -> Version:
    """The least version with the numbers of a version."""
    return Version(f"{version.base_version}.dev0")


def _parse_version(text: str, condition: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} in {condition!r} is not a version (PEP 440)") from None
