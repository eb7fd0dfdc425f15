"""Packages that a query names more than once, merged; what no environment can have is a contradiction. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from packaging.version import Version

from knowngood.compat.findings import Finding
from knowngood.compat.query import PackageSpec
from knowngood.compat.value_domain import NONE, specifiers_overlap, version_matches


def merge_repeated_packages(packages: Iterable[PackageSpec]) -> tuple[list[PackageSpec], list[Finding]]:
    """Return each package once, in the order of the query, and an error for each whose mentions contradict each other.

    Such a package is not among the returned ones.
    """
    by_name: dict[str, list[PackageSpec]] = {}
    for package in packages:
        by_name.setdefault(package.name, []).append(package)
    merged, errors = [], []
    for mentions in by_name.values():
        clash = find_contradiction(mentions)
        if clash is None:
            merged.append(mentions[0] if len(mentions) == 1 else _merge(mentions))
        else:
            errors.append(_contradiction_finding(*clash))
    return merged, errors


def find_contradiction(mentions: Sequence[PackageSpec]) -> tuple[PackageSpec, PackageSpec] | None:
    """Return two mentions of a package that no environment can fulfil together; `None` when there are none."""
    pairs = ((one, two) for place, one in enumerate(mentions) for two in mentions[place + 1 :])
    return next(((one, two) for one, two in pairs if not _go_together(one, two)), None)


def _go_together(one: PackageSpec, two: PackageSpec) -> bool:
    if NONE in (one.specifier, two.specifier):
        return one.specifier == two.specifier
    if one.version and two.version:
        same_build = one.local is None or two.local is None or one.local.lower() == two.local.lower()
        return Version(one.version) == Version(two.version) and same_build
    if one.version or two.version:
        pin, other = (one, two) if one.version else (two, one)
        return not other.specifier or version_matches(other.specifier, str(pin.version))
    return not one.specifier or not two.specifier or specifiers_overlap(one.specifier, two.specifier)


def _merge(mentions: Sequence[PackageSpec]) -> PackageSpec:
    """One package that means all mentions, which go together: the most exact one, else all ranges."""
    pins = [item for item in mentions if item.version or item.specifier == NONE]
    exact = max(pins, key=lambda item: (item.wheel is not None, item.local is not None), default=None)
    ranges = dict.fromkeys(item.specifier for item in mentions if item.specifier)
    return replace(
        exact or replace(mentions[0], specifier=",".join(ranges)),
        explicit=any(item.explicit for item in mentions),
        extras=tuple(dict.fromkeys(extra for item in mentions for extra in item.extras)),
    )


def _contradiction_finding(one: PackageSpec, two: PackageSpec) -> Finding:
    texts = [f"{item.text}+{item.local}" if item.local else item.text for item in (one, two)]
    return Finding(
        id=f"asked-twice:{one.name}",
        kind="rule",
        severity="error",
        packages={one.name: " and ".join(item.version or item.specifier for item in (one, two))},
        because=f"{one.name} is asked for twice, as {texts[0]} and as {texts[1]}; no environment has both: keep one",
        source=("the question itself",),
        confidence="artefact",
    )
