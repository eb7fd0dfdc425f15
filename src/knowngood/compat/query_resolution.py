"""The packages of a query resolved with everything that they require, on the Python and glibc that it states. Pure.

Without a stated Python it is resolved for the first of `PYTHONS`, and for the others only when that one has a part in
the failure: a list is broken when no Python helps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from knowngood.compat.dependency_markers import ResolutionTarget
from knowngood.compat.findings import AXES, Finding
from knowngood.compat.query import DEFAULT_MACHINE, PackageSpec
from knowngood.compat.requirement_graph import (
    Excludes,
    RequirementResolution,
    RequirementSearches,
    Requires,
    python_is_declared,
    resolve_packages,
)
from knowngood.compat.resolution_findings import conflict_finding, list_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from knowngood.compat.metadata_store import ReleaseDeclaration
    from knowngood.compat.universe import Universe

PYTHONS = ("3.11", "3.12", "3.10", "3.13", "3.9", "3.14", "3.8")
"""The Pythons for which a list is resolved when the query states none, the first first."""

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
        "searches", lambda: RequirementSearches(store=universe.metadata, waived=_waived_requirements(universe))
    )
    pythons: Iterable[str] = (axes["python"],) if "python" in axes else PYTHONS
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
            return QueryResolution(resolution=resolution, notes=notes, packages=packages, undeclared=undeclared)
        if resolution is first and not _depends_on_python(resolution):
            break
    assert first is not None  # noqa: S101 - there is at least one Python
    return QueryResolution(resolution=first, findings=tuple(_conflict_findings(first, searches)), packages=packages)


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
    causes = [clash.cause for clash in resolution.conflict.failure.clashes] if resolution.conflict else []
    return any(
        (isinstance(cause, Excludes) and cause.kind in ("python", "wheel"))
        or (isinstance(cause, Requires) and "python" in cause.dependency.marker)
        for cause in causes
    )


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
