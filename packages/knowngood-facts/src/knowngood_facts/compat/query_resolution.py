"""The packages of a query resolved with all they require, the nearest cell, and the smallest change. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from knowngood.core.package_names import canonical_name
from knowngood_facts.compat.demands import Demand, find_smallest_change
from knowngood_facts.compat.dependency_markers import ResolutionTarget
from knowngood_facts.compat.findings import AXES, Finding
from knowngood_facts.compat.metadata_store import find_supposed_release
from knowngood_facts.compat.query import DEFAULT_MACHINE, PackageSpec
from knowngood_facts.compat.requirement_graph import (
    USUAL_PYTHONS,
    RequirementResolution,
    RequirementSearches,
    Requires,
    python_is_declared,
    resolve_packages,
)
from knowngood_facts.compat.resolution_findings import conflict_finding
from knowngood_facts.compat.suggestions import list_problem, suggestible_values
from knowngood_facts.compat.value_domain import NONE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from knowngood_facts.compat.metadata_store import MetadataStore, ReleaseDeclaration
    from knowngood_facts.compat.query_placement import QueryPlacement
    from knowngood_facts.compat.universe import Universe

_CONFLICTS = 3
"""So many conflicts that have no package in common are reported at once."""


@dataclass(frozen=True, kw_only=True)
class SupposedNeed:
    """A requirement that only a release newer than all that were read can meet."""

    package: str
    """The package of which a newer release is required."""
    specifier: str
    release: str
    """The least release that meets it."""
    required_by: str


@dataclass(frozen=True, kw_only=True)
class QueryResolution:
    """What resolving the packages of a query gave."""

    resolution: RequirementResolution
    findings: tuple[Finding, ...] = ()
    """The conflicts, each with its chain."""
    notes: tuple[str, ...] = ()
    """What was looked at, and what was not."""
    packages: tuple[PackageSpec, ...] = field(default=())
    """The packages of the query that have metadata, or one release that others may exclude."""
    undeclared: Mapping[str, str] = field(default_factory=dict)
    """The chosen releases of which neither metadata nor facts state what they require: package -> release."""
    supposed: tuple[SupposedNeed, ...] = ()
    """What is required of packages that is newer than all their releases that were read."""

    any_python: bool = True
    """The query states no Python."""


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
    if all(universe.metadata.find_package(package.name) is None for package in packages):
        return None
    known = tuple(
        package for package in packages if package.version or universe.metadata.find_package(package.name) is not None
    )
    key = (known, axes.get("python"), axes.get("glibc"), machine)
    if key not in universe.question:
        universe.question[key] = _resolve(universe, known, axes, machine)
    resolution: QueryResolution = universe.question[key]
    return resolution


def _resolve(
    universe: Universe, packages: tuple[PackageSpec, ...], axes: Mapping[str, str], machine: str
) -> QueryResolution:
    pythons: Iterable[str] = (axes["python"],) if "python" in axes else USUAL_PYTHONS
    first: tuple[RequirementResolution, RequirementSearches] | None = None
    for python in pythons:
        target = ResolutionTarget(
            python=python.removesuffix("t"),
            machine=machine,
            glibc=axes.get("glibc"),
            free_threaded=python.endswith("t"),
        )
        resolution, searches, supposed = resolve_on_target(universe, packages, target)
        first = first or (resolution, searches)
        if resolution.conflict is None:
            book = universe.space.book
            undeclared = {
                name: version
                for name, version in resolution.undeclared.items()
                if book.fact(name, version, "requires") is None
            }
            notes = _notes(resolution)
            if resolution is not first[0]:
                notes = (f"it resolves with Python {python}, and not with {first[0].target.python}", *notes)
            return QueryResolution(
                resolution=resolution,
                notes=notes,
                packages=packages,
                undeclared=undeclared,
                supposed=supposed,
                any_python="python" not in axes,
            )
        if resolution is first[0] and not _depends_on_python(resolution):
            break
    assert first is not None  # noqa: S101 - there is at least one Python
    findings = tuple(_conflict_findings(*first))
    any_python = "python" not in axes
    return QueryResolution(resolution=first[0], findings=findings, packages=packages, any_python=any_python)


def resolve_on_target(
    universe: Universe, packages: tuple[PackageSpec, ...], target: ResolutionTarget
) -> tuple[RequirementResolution, RequirementSearches, tuple[SupposedNeed, ...]]:
    """Resolve packages; a release newer than all that were read may be there where something requires it."""
    pins = {package.name: package.version for package in packages if _is_supposed(universe.metadata, package)}
    needs: dict[tuple[str, str], SupposedNeed] = {}
    while True:
        releases: dict[str, set[str]] = {name: {str(version)} for name, version in pins.items()}
        for need in needs.values():
            releases.setdefault(need.package, set()).add(need.release)
        key = frozenset((name, *sorted(texts)) for name, texts in releases.items())
        if key not in universe.question:
            universe.question[key] = _begin_searches(universe, releases)
        searches: RequirementSearches = universe.question[key]
        resolution = resolve_packages(packages, target, searches)
        unmet = {(need.package, need.release): need for need in _find_supposed(resolution)}
        if not unmet.keys() - needs.keys():
            break
        needs |= unmet
    chosen = [item for item in resolution.versions.items() if item in needs]
    unread = {name for name, _ in chosen} | pins.keys()
    resolution.versions = {name: text for name, text in resolution.versions.items() if name not in unread}
    resolution.settled = {name: text for name, text in resolution.settled.items() if name not in unread}
    return resolution, searches, tuple(needs[item] for item in chosen)


def _begin_searches(universe: Universe, supposed: Mapping[str, Collection[str]]) -> RequirementSearches:
    store = universe.metadata.with_supposed(supposed) if supposed else universe.metadata
    return RequirementSearches(store=store, waived=_waived_requirements(universe), rules=universe.index)


def _is_supposed(store: MetadataStore, package: PackageSpec) -> bool:
    """Whether a package of a query is pinned to a release that nobody read, and that others may exclude."""
    known = store.find_package(package.name)
    if known is None or not package.version:
        return bool(package.version)
    return find_supposed_release(known.domain, package.specifier) is not None


def _find_supposed(resolution: RequirementResolution) -> Iterator[SupposedNeed]:
    """Yield what a conflict has of requirements that a release newer than all that were read would meet."""
    for clash in resolution.conflict.failure.clashes if resolution.conflict else ():
        cause = clash.cause
        node = resolution.graph.node(cause.dependency.name) if isinstance(cause, Requires) else None
        if not isinstance(cause, Requires) or node is None:
            continue
        release = find_supposed_release(node.domain, cause.dependency.specifier)
        if release is not None:
            specifier = cause.dependency.specifier
            yield SupposedNeed(package=node.name, specifier=specifier, release=release, required_by=cause.package)


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


def _notes(resolution: RequirementResolution) -> tuple[str, ...]:
    notes = []
    if resolution.given_up:
        notes.append("the search for releases that go together was given up after too many steps")
    for name, release in _listed_releases(resolution):
        if release.source == "dynamic":
            version = resolution.versions[name]
            notes.append(f"{name} {version} has no wheel; what it requires is what the build of its sdist stated")
        if release.requires_python and not python_is_declared(release.requires_python, resolution.target):
            version, python = resolution.versions[name], resolution.target.python
            notes.append(
                f"{name} {version} declares Python {release.requires_python}: with {python} pip refuses it; uv, which "
                "heeds only the lower bound, installs it"
            )
    return tuple(notes)


def list_compiled_wheels(store: MetadataStore, package: PackageSpec) -> list[str]:
    """Return the tags of the wheels for one kind of machine, of the newest release that a package of a query means."""
    known = store.find_package(package.name)
    mask = known.wanted(package) & known.domain.some if known is not None else 0
    if known is None or not mask:
        return []
    return [tag for tag in known.releases[mask.bit_length() - 1].wheels if not tag.endswith("-any")]


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
