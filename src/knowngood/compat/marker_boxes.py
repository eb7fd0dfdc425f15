"""Boxes of declared requirements, narrowed to the Pythons on which the metadata's markers make them hold. Pure.

torch 2.5.1 requires triton 3.1.0 on Python before 3.13 only. The facts have a requirement as it stands for one Python;
the metadata has its marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from knowngood.compat.dependency_markers import ResolutionTarget, is_of_extra, parse_dependency
from knowngood.compat.metadata_store import MetadataStore, PackageReleases
from knowngood.compat.rule_boxes import Box
from knowngood.compat.value_domain import ValueDomain, iterate_bits

REQUIREMENT = "requires:"
"""How the ids of rules about declared requirements begin: `requires:torch:triton`."""


def narrow_to_markers(
    boxes: Iterable[Box], domains: Mapping[str, ValueDomain], metadata: MetadataStore
) -> Iterator[Box]:
    """Yield the boxes; one of a requirement between two packages that a marker limits to some Pythons only for those.

    Args:
        boxes: the boxes of all rules.
        domains: the values of each variable.
        metadata: what releases declare; a requirement that it does not have holds on every Python.
    """
    for box in boxes:
        package, _, other = box.rule.id.removeprefix(REQUIREMENT).partition(":")
        releases = metadata.find_package(package) if box.masks.keys() == {package, other} - {"python"} else None
        if releases is None or not box.rule.id.startswith(REQUIREMENT):
            yield box
            continue
        places_with: dict[int, int] = {}
        for place in iterate_bits(box.masks[package]):
            pythons = _pythons_that_require(releases, domains[package].text(place), other, domains["python"])
            places_with[pythons] = places_with.get(pythons, 0) | 1 << place
        for pythons, places in places_with.items():
            masks = {**box.masks, package: places}
            if pythons != domains["python"].all:
                masks["python"] = pythons
            if pythons:
                yield replace(box, masks=masks)


def _pythons_that_require(releases: PackageReleases, version: str, other: str, pythons: ValueDomain) -> int:
    """Return the Pythons on which a release requires another package."""
    place = releases.domain.index.get(version)
    if place is None:
        return pythons.all
    lines = (line for line in releases.releases[place].requirements if other in line and not is_of_extra(line))
    dependencies = [item for item in map(parse_dependency, lines) if item is not None and item.name == other]
    if not dependencies or any("python" not in item.marker for item in dependencies):
        return pythons.all
    return sum(
        1 << number
        for number, text in enumerate(pythons.values)
        if any(ResolutionTarget(python=text).fulfils(item.marker) for item in dependencies)
    )
