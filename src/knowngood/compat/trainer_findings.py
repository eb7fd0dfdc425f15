"""What an answer says about a trainer that a query names: which cells have it, and why there is no other. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.compat.broken_pairs import find_broken_pairs
from knowngood.compat.findings import Finding, fact_finding
from knowngood.compat.matrix_cells import PublishedCells, packages_of_cell, takes_release
from knowngood.compat.query_resolution import resolve_with_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from knowngood.compat.query import PackageSpec
    from knowngood.compat.query_placement import QueryPlacement
    from knowngood.core.cell import Cell

TRAINER = "trainer:"
"""The ids of findings about the cells of a trainer begin so."""


def describe_trainers(
    placement: QueryPlacement,
    published: PublishedCells,
    wanted: Mapping[str, PackageSpec],
    offered: Sequence[Cell],
) -> Iterator[Finding]:
    """Yield what there is to say about the trainers of a query that no offered cell has.

    Args:
        placement: the query.
        published: the cells of matrix.yaml.
        wanted: the trainers of the query that some of these cells have.
        offered: the cells of matrix.yaml that are offered.
    """
    for name, package in wanted.items():
        if name in placement.uncovered and not any(_has_package(published, cell, name) for cell in offered):
            yield _describe_missing_trainer(placement, package, published)


def _has_package(published: PublishedCells, cell: Cell, name: str) -> bool:
    return (cell.framework_pin or ("",))[0] == name or name in published.read_lock(cell)


def _describe_missing_trainer(placement: QueryPlacement, package: PackageSpec, published: PublishedCells) -> Finding:
    """Return which cells have a trainer, those for the query's GPU first, and why another release cannot be had."""
    gpus = next((demand.mask for demand in placement.demands if demand.variable == "gpu"), 0)
    index = placement.universe.index.domains["gpu"].index
    having = published.rank(cell for cell in published.cells if (cell.framework_pin or ("",))[0] == package.name)
    having.sort(key=lambda cell: not gpus >> index[cell.gpu] & 1)
    releases = dict.fromkeys(cell.framework_pin[1] for cell in having if cell.framework_pin)
    there = " and ".join(_describe_release(package.name, release, having) for release in releases)
    if any(takes_release(package, release) for release in releases):
        return _finding(package, f"there are cells for {there}; none of them fits the rest of what is asked for")
    because = f"no cell is made for {package.text}; there are cells for {there}"
    cell = having[0]
    resolved = resolve_with_cell(placement, cell.python, packages_of_cell(cell.without_framework()))
    if package.name in placement.declared and resolved is not None:
        beside = f"beside torch {cell.torch} and transformers {cell.transformers} of {cell}"
        broken = [
            finding
            for finding in find_broken_pairs(resolved.resolution.settled, placement.universe.broken_uses)
            if finding.severity == "error"
        ]
        conflict = next((finding.because for finding in (*resolved.findings, *broken)), None)
        because += (
            f"; {beside} it cannot be had: {conflict}"
            if conflict
            else f"; {beside} it can be had by what packages declare, but no run has seen it train"
        )
    return _finding(package, because)


def _describe_release(name: str, release: str, cells: Iterable[Cell]) -> str:
    """Return a trainer's release with the GPUs of its cells."""
    gpus = dict.fromkeys(cell.gpu for cell in cells if cell.framework_pin == (name, release))
    return f"{name} {release} (on {', '.join(gpus)})"


def note_absent_trainers(cell: Cell, absent: Iterable[PackageSpec]) -> Iterator[Finding]:
    """Yield a note for each trainer of a query that is neither in the lock of an offered cell nor its framework."""
    for package in absent:
        if not (cell.framework_pin and cell.framework_pin[0] == package.name):
            because = f"{package.name} is not in this cell; `knowngood run` adds it: --with {package.text}"
            yield _finding(package, because)


def _finding(package: PackageSpec, because: str) -> Finding:
    packages = {package.name: package.version or package.specifier}
    return fact_finding(f"{TRAINER}{package.name}", "info", packages, because, ["matrix.yaml"])
