"""Whether the packages of a cell resolve together with what a query asks for besides, and the nearest cell that does.

Pure. The rules know what a few packages require of each other; this asks the metadata of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from knowngood.compat.query import PackageSpec
from knowngood.compat.query_placement import QueryPlacement
from knowngood.compat.query_resolution import QueryResolution, resolve_query_packages
from knowngood.compat.resolution_changes import find_resolving_moves
from knowngood.compat.universe import Universe
from knowngood.compat.value_domain import NONE
from knowngood.core.package_names import canonical_name


def find_nearest_releases(
    placement: QueryPlacement, axes: Mapping[str, str], versions: Mapping[str, str], boxes: int
) -> dict[str, str] | None:
    """Return the releases nearest to these that resolve with the query's packages and break no rule.

    Args:
        placement: the query; what it states of packages is kept.
        axes: the Python and the GPU of the cell.
        versions: package -> release, or `none`, of the cell.
        boxes: the bits of the boxes of rules that count.
    """
    resolved = resolve_with_cell(placement, axes["python"], versions)
    if resolved is None:
        return None
    domains = placement.universe.index.domains
    places = {name: domains[name].index[value] for name, value in axes.items() if value in domains[name].index}
    at_cell = replace(placement, assignment={**placement.assignment, **places})
    stated = frozenset(package.name for package in placement.packages)
    moves = find_resolving_moves(resolved.resolution, at_cell, boxes, kept=stated)
    return {**versions, **moves[0].changes} if moves else None


def resolve_with_cell(placement: QueryPlacement, python: str, versions: Mapping[str, str]) -> QueryResolution | None:
    """Return what resolving a cell's releases with the query's packages gives; `None` where no metadata is known.

    Args:
        placement: the query; a release that it pins counts before that of the cell.
        python: the Python of the cell.
        versions: package -> release, or `none`, of the cell.
    """
    universe: Universe = placement.universe
    packages = {package.name: package for package in placement.packages}
    for name, version in versions.items():
        package = packages.get(name)
        if package is None or not package.version:
            extras = package.extras if package else ()
            specifier = NONE if version == NONE else f"=={version}"
            packages[name] = PackageSpec(name=canonical_name(name), specifier=specifier, extras=extras)
    return resolve_query_packages(universe, list(packages.values()), {"python": python})
