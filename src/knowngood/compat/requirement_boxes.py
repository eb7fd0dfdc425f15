"""What packages with facts require of each other and of third packages, as boxes for searches over many combinations.

The resolution of a list (`requirement_resolution`) and these boxes have one source: the requirements that
`Factbook.requirements` gives. torch 2.5.1 requires triton 3.1.0 on Python before 3.13 only, so a box of a requirement
with a marker has the Pythons for which the marker holds. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from knowngood.compat.dependency_markers import ResolutionTarget
from knowngood.compat.factbook import DeclaredRequirement, Factbook
from knowngood.compat.metadata_store import specifier_mask
from knowngood.compat.rule import Rule
from knowngood.compat.rule_boxes import Box
from knowngood.compat.value_domain import ValueDomain, iterate_bits, specifiers_overlap

_Domains = Mapping[str, ValueDomain]


def boxes_of_requirements(book: Factbook, domains: _Domains) -> Iterator[Box]:
    """Yield, for each requirement of a package with facts on another one, the releases that it excludes."""
    for package in book.packages:
        for item in book.requirements(package):
            other = item.dependency.name
            if other not in book.tables or other == package:
                continue
            pythons = _pythons_of_marker(item.dependency.marker, domains["python"])
            # A package that is required must be there, in a release that fulfils the specifier.
            refused = domains[other].all & ~specifier_mask(domains[other], item.dependency.specifier)
            masks = {package: _mask_of_releases(item, domains[package]), other: refused}
            if pythons != domains["python"].all:
                masks["python"] = pythons
            if all(masks.values()):
                yield Box(rule=_requirement_rule(package, other, item.dependency.specifier), masks=masks)


def boxes_of_conflicting_bounds(book: Factbook, domains: _Domains) -> Iterator[Box]:
    """Yield a box for each pair of packages whose bounds on a third package exclude each other."""
    bounds: dict[str, dict[str, list[DeclaredRequirement]]] = {}
    for package in book.packages:
        for item in book.requirements(package):
            if item.dependency.specifier and item.dependency.name not in book.tables:
                bounds.setdefault(item.dependency.name, {}).setdefault(package, []).append(item)
    for name, packages in bounds.items():
        for first, second in itertools.combinations(sorted(packages), 2):
            for one, two in itertools.product(packages[first], packages[second]):
                if not specifiers_overlap(one.dependency.specifier, two.dependency.specifier):
                    yield from _box_of_bounds(name, (first, one), (second, two), domains)


def _box_of_bounds(
    name: str, first: tuple[str, DeclaredRequirement], second: tuple[str, DeclaredRequirement], domains: _Domains
) -> Iterator[Box]:
    """Yield the box of two bounds on a package that exclude each other; none when no Python has both."""
    masks = {package: _mask_of_releases(item, domains[package]) for package, item in (first, second)}
    pythons = domains["python"].all
    for _, item in (first, second):
        pythons &= _pythons_of_marker(item.dependency.marker, domains["python"])
    if pythons != domains["python"].all:
        masks["python"] = pythons
    (one, one_item), (two, two_item) = first, second
    one_text, two_text = (item.dependency.specifier for item in (one_item, two_item))
    rule = Rule(
        id=f"bounds:{one}:{two}:{name}",
        require={},
        because=f"{one} {{{one}}} requires {name}{one_text}, {two} {{{two}}} {name}{two_text}",
        source=(f"{{source:{one}}}", f"{{source:{two}}}"),
    )
    if all(masks.values()):
        yield Box(rule=rule, masks=masks)


def _requirement_rule(package: str, other: str, specifier: str) -> Rule:
    return Rule(
        id=f"requires:{package}:{other}",
        require={},
        because=f"{package} {{{package}}} requires {other}{specifier}",
        source=(f"{{source:{package}}}",),
    )


def _mask_of_releases(item: DeclaredRequirement, domain: ValueDomain) -> int:
    return sum(1 << domain.index[version] for version in item.versions)


def _pythons_of_marker(marker: str, pythons: ValueDomain) -> int:
    """Return the Pythons of a domain for which a marker holds."""
    if not marker:
        return pythons.all
    return sum(1 << place for place in iterate_bits(pythons.all) if _target(pythons.text(place)).fulfils(marker))


_TARGETS: dict[str, ResolutionTarget] = {}


def _target(python: str) -> ResolutionTarget:
    """Return the target of a Python; what it has evaluated once it keeps."""
    if python not in _TARGETS:
        _TARGETS[python] = ResolutionTarget(python=python)
    return _TARGETS[python]
