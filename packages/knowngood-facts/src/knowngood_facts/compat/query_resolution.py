"""The packages of a query resolved with all they require, the nearest cell, and the smallest change. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from knowngood.core.package_names import canonical_name
from knowngood_facts.compat.demands import Demand, find_smallest_change
from knowngood_facts.compat.dependency_markers import ResolutionTarget
from knowngood_facts.compat.findings import AXES, Finding
from knowngood_facts.compat.query import DEFAULT_MACHINE, PackageSpec
from knowngood_facts.compat.requirement_graph import (
    USUAL_PYTHONS,
    RequirementResolution,
    RequirementSearches,
    python_is_declared,
    resolve_packages,
)
from knowngood_facts.compat.resolution_findings import conflict_finding, list_names
from knowngood_facts.compat.suggestions import list_problem, suggestible_values
from knowngood_facts.compat.value_domain import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from knowngood_facts.compat.metadata_store import ReleaseDeclaration
    from knowngood_facts.compat.query_placement import QueryPlacement
    from knowngood_facts.compat.universe import Universe

_CONFLICTS = 3
"""So many conflicts that have no package in common are reported at once."""


@dataclass(frozen=True, kw_only=True)
class QueryResolution:
    """What resolving the packages of a query gave."""

    resolution: RequirementResolution
    findings: tuple[Finding, ...] = ()
    """The conflicts, each with its chain."""
    notes: tuple[str, ...] = ()
    """What was looked at, and what was not."""
    packages: tuple[PackageSpec, ...] = field(default=())
    """The packages of the query that have metadata."""
    undeclared: Mapping[str, str] = field(default_factory=dict)
    """The chosen releases of which neither metadata nor facts state what they require: package -> release."""

    any_python: bool = True
    """The query states no Python."""

    @property
    def is_sure(self) -> bool:
        """Whether there is a solution, and it is known what the packages of the query require."""
        listed = {package.name for package in self.packages}
        unsure = self.resolution.given_up or bool(self.undeclared.keys() & listed)
        return self.resolution.conflict is None and not unsure


def resolve_query_packages(
    universe: Universe, packages: Sequence[PackageSpec], axes: Mapping[str, str], machine: str = DEFAULT_MACHINE
) -> QueryResolution | None:
    """Resolve the packages of a query; `None` when there is no metadata about any of them.

    Args:
        universe: it has the metadata.
        packages: each package once.
        axes: the stated Python and glibc, among others.
        machine: `x86_64` or `aarch64`.
    """
    known = tuple(package for package in packages if universe.metadata.find_package(package.name) is not None)
    if not known:
        return None
    cache: dict[object, QueryResolution] = universe.cached("resolutions", dict)
    key = (known, axes.get("python"), axes.get("glibc"), machine)
    if key not in cache:
        if len(cache) > 1_000:
            cache.clear()
        cache[key] = _resolve(universe, known, axes, machine)
    return cache[key]


def _resolve(
    universe: Universe, packages: tuple[PackageSpec, ...], axes: Mapping[str, str], machine: str
) -> QueryResolution:
    searches: RequirementSearches = universe.cached(
        "searches",
        lambda: RequirementSearches(
            store=universe.metadata, waived=_waived_requirements(universe), rules=universe.index
        ),
    )
    pythons: Iterable[str] = (axes["python"],) if "python" in axes else USUAL_PYTHONS
    first: RequirementResolution | None = None
    for python in pythons:
        target = ResolutionTarget(
            python=python.removesuffix("t"),
            machine=machine,
            glibc=axes.get("glibc"),
            free_threaded=python.endswith("t"),
        )
        resolution = resolve_packages(packages, target, searches)
        first = first or resolution
        if resolution.conflict is None:
            book = universe.space.book
            undeclared = {
                name: version
                for name, version in resolution.undeclared.items()
                if book.fact(name, version, "requires") is None
            }
            notes = _notes(resolution, undeclared)
            if resolution is not first:
                notes = (f"it resolves with Python {python}, and not with {first.target.python}", *notes)
            return QueryResolution(
                resolution=resolution,
                notes=notes,
                packages=packages,
                undeclared=undeclared,
                any_python="python" not in axes,
            )
        if resolution is first and not _depends_on_python(resolution):
            break
    assert first is not None  # noqa: S101 - there is at least one Python
    findings = tuple(_conflict_findings(first, searches))
    any_python = "python" not in axes
    return QueryResolution(resolution=first, findings=findings, packages=packages, any_python=any_python)


def _waived_requirements(universe: Universe) -> dict[tuple[str, str, str], frozenset[str]]:
    """The requirements that matrix.yaml waives, as `RequirementGraph` has them."""
    waived: dict[tuple[str, str, str], frozenset[str]] = {}
    for waiver in universe.waivers:
        kind, _, names = waiver.finding.partition(":")
        package, _, other = names.partition(":")
        if kind == "requires" and {package, other} <= waiver.values.keys():
            key = (package, waiver.values[package], other)
            waived[key] = waived.get(key, frozenset()) | {waiver.values[other]}
    return waived


def _depends_on_python(resolution: RequirementResolution) -> bool:
    """Whether a conflict has a cause that does not hold for every Python."""
    return resolution.conflict is not None and resolution.python in resolution.conflict.failure.wishes


def _conflict_findings(resolution: RequirementResolution, searches: RequirementSearches) -> Iterator[Finding]:
    """Yield a finding for the conflict, and for others that have no package in common with it."""
    packages = list(dict.fromkeys(resolution.wishes.values()))
    for _ in range(_CONFLICTS):
        if resolution.conflict is None:
            return
        yield conflict_finding(resolution, resolution.conflict)
        packages = [package for package in packages if package not in resolution.conflict.packages]
        resolution = resolve_packages(packages, resolution.target, searches)


def _listed_releases(resolution: RequirementResolution) -> Iterator[tuple[str, ReleaseDeclaration]]:
    """Yield the chosen releases of the packages of the list."""
    for name in dict.fromkeys(package.name for package in resolution.wishes.values()):
        package, version = resolution.graph.store.find_package(name), resolution.versions.get(name)
        if package is not None and version is not None:
            yield name, package.releases[package.domain.index[version]]


def _notes(resolution: RequirementResolution, undeclared: Mapping[str, str]) -> tuple[str, ...]:
    notes = []
    if resolution.given_up:
        notes.append("the search for releases that go together was given up after too many steps")
    if undeclared:
        releases = list_names(f"{name} {version}" for name, version in undeclared.items())
        notes.append(f"no artefact states what {releases} requires before it is built, so that was not looked at")
    for name, release in _listed_releases(resolution):
        if release.requires_python and not python_is_declared(release.requires_python, resolution.target):
            version, python = resolution.versions[name], resolution.target.python
            notes.append(
                f"{name} {version} declares Python {release.requires_python}: with {python} pip refuses it; uv, which "
                "heeds only the lower bound, installs it"
            )
    if resolution.unread:
        notes.append(
            f"there is no metadata of {list_names(resolution.unread)}, which others require: any is taken to fit"
        )
    return tuple(notes)


def conflicts_beside(conflicts: Sequence[Finding], findings: Sequence[Finding]) -> list[Finding]:
    """Return the conflicts that no other error about the same packages states already."""
    stated = [finding.packages.keys() - AXES for finding in findings if finding.severity == "error"]
    return [finding for finding in conflicts if finding.packages.keys() not in stated]


def with_chains(findings: Sequence[Finding], conflicts: Sequence[Finding]) -> list[Finding]:
    """Return the findings of rules; one that a conflict states too has its words, which name what the list has."""
    chains = {conflict.id: conflict.because for conflict in conflicts}
    return [
        replace(finding, because=chains[finding.id])
        if finding.severity == "error" and finding.id in chains
        else finding
        for finding in findings
    ]


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
    stated = {package.name for package in placement.packages}
    pins = [
        Demand(text=f"{name}=={version}", variable=name, mask=domains[name].mask(version))
        for name, version in versions.items()
        if name in domains and name not in stated
    ]
    at_cell = replace(placement, demands=[*placement.demands, *pins])
    problem = list_problem(at_cell, resolved, boxes, suggestible_values(at_cell))
    places = {name: 1 << domains[name].index[value] for name, value in axes.items() if value in domains[name].index}
    problem = replace(problem, base={**problem.base, **places})
    change = find_smallest_change(problem, pins)
    if change is None:
        return None
    return {**versions, **{name: domains[name].text(place) for name, place in change.places.items()}}


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
