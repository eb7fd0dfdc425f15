"""The packages of a query resolved with all they require, the nearest cell, and the smallest change. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from knowngood.core.package_names import canonical_name
from knowngood_facts.compat.dependency_markers import ResolutionTarget
from knowngood_facts.compat.findings import AXES, Finding, move_cost
from knowngood_facts.compat.metadata_store import SupposedRelease, find_supposed_release
from knowngood_facts.compat.query import DEFAULT_MACHINE, PackageSpec
from knowngood_facts.compat.requirement_graph import (
    Excludes,
    RequirementResolution,
    RequirementSearches,
    Requires,
    python_is_declared,
    resolve_packages,
)
from knowngood_facts.compat.requirement_solver import Clash, SearchFailure, SearchLimitError, Wish
from knowngood_facts.compat.resolution_findings import conflict_finding, list_names
from knowngood_facts.compat.suggestions import DISPENSABLE
from knowngood_facts.compat.value_domain import NONE, iterate_bits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from knowngood_facts.compat.metadata_store import MetadataStore, ReleaseDeclaration
    from knowngood_facts.compat.query_placement import QueryPlacement
    from knowngood_facts.compat.universe import Universe

PYTHONS = ("3.11", "3.12", "3.10", "3.13", "3.9", "3.14", "3.8")
"""The Pythons for which a list is resolved when the query states none, the first first."""

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
    if all(universe.metadata.find_package(package.name) is None for package in packages):
        return None
    known = tuple(
        package for package in packages if package.version or universe.metadata.find_package(package.name) is not None
    )
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
    pythons: Iterable[str] = (axes["python"],) if "python" in axes else PYTHONS
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
            notes = _notes(resolution, undeclared)
            if resolution is not first[0]:
                notes = (f"it resolves with Python {python}, and not with {first[0].target.python}", *notes)
            return QueryResolution(
                resolution=resolution, notes=notes, packages=packages, undeclared=undeclared, supposed=supposed
            )
        if resolution is first[0] and not _depends_on_python(resolution):
            break
    assert first is not None  # noqa: S101 - there is at least one Python
    return QueryResolution(resolution=first[0], findings=tuple(_conflict_findings(*first)), packages=packages)


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
        key = f"searches {sorted((name, *sorted(texts)) for name, texts in releases.items())}"
        searches: RequirementSearches = universe.cached(key, partial(_begin_searches, universe, releases))
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
    return RequirementSearches(store=store, waived=_waived_requirements(universe))


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


_TRIALS = 60
"""So many sets of pins are tried at most."""


@dataclass(frozen=True, kw_only=True)
class PinMove:
    """Another release for each of a few packages, and what that costs in all; see `move_cost`."""

    cost: int
    changes: Mapping[str, str]
    """Package -> release, or `none`."""


def find_resolving_moves(
    resolution: RequirementResolution, placement: QueryPlacement, boxes: int, kept: Collection[str] = ()
) -> list[PinMove]:
    """Return the changes of the fewest packages with which a list resolves, the cheapest first.

    Args:
        resolution: the list, which cannot be resolved or breaks a rule.
        placement: the query that has the list.
        boxes: the bits of the boxes of rules that count.
        kept: the packages that must not change.
    """
    universe = placement.universe
    selectable = {name: universe.index.domains[name].texts(mask) for name, mask in universe.selectable.items()}
    rules = _add_rules(resolution, placement, boxes)
    by_package: dict[str, list[Wish]] = {}
    for wish, package in resolution.wishes.items():
        by_package.setdefault(package.name, []).append(wish)
    fixed = {package.name for package in resolution.wishes.values() if package.specifier == NONE} | set(kept)
    tried: set[frozenset[str]] = set()
    queue: list[tuple[str, ...]] = [()]
    moves: list[PinMove] = []
    while queue and len(tried) < _TRIALS:
        loose = queue.pop(0)
        if moves and len(loose) > len(moves[0].changes):
            break
        if frozenset(loose) in tried:
            continue
        tried.add(frozenset(loose))
        try:
            result = _try_without(resolution, rules, by_package, loose, selectable)
        except SearchLimitError:
            continue
        if isinstance(result, PinMove):
            moves.append(result)
        else:
            queue += [(*loose, name) for name in result if name not in fixed.union(loose)]
    return sorted(moves, key=lambda move: move.cost)


def _add_rules(resolution: RequirementResolution, placement: QueryPlacement, boxes: int) -> Wish:
    """Give the search the rules that can be broken by releases of the list, and return the wish that they hold."""
    index, store = placement.universe.index, resolution.graph.store
    stated = {name: place for name, place in placement.assignment.items() if name in AXES}
    names = {package.name for package in resolution.wishes.values()} | resolution.settled.keys()
    key = f"[{boxes} {sorted(stated.items())} {sorted(names)}]"
    if key not in resolution.search.about:
        resolution.search.about[key] = []
        for bit in iterate_bits(boxes):
            masks = index.boxes[bit].masks
            axes = masks.keys() & AXES
            if not axes <= stated.keys() or any(not masks[name] >> stated[name] & 1 for name in axes):
                continue
            if not masks.keys() - AXES <= names:
                continue
            sets = {key: 1}
            for name in masks.keys() - AXES:
                package = store.find_package(name)
                if package is None:
                    break
                own = package.domain
                sets[name] = _translate(index.domains[name].texts(masks[name]), own.index, own.absent)
            else:
                clash = Clash(sets, index.boxes[bit].rule)
                for name in sets:
                    resolution.search.about.setdefault(name, []).append(clash)
    return Wish(key, 1)


def _translate(texts: Sequence[str], places: Mapping[str, int], absent: int) -> int:
    mask = 0
    for text in texts:
        if text == NONE:
            mask |= absent
        elif text in places:
            mask |= 1 << places[text]
    return mask


def _try_without(
    resolution: RequirementResolution,
    rules: Wish,
    by_package: Mapping[str, Sequence[Wish]],
    loose: tuple[str, ...],
    selectable: Mapping[str, Sequence[str]],
) -> PinMove | list[str]:
    """Let some packages change: return their new releases, or the packages of which another has to change as well."""
    graph = resolution.graph
    wishes, prefer, anchors = [rules], {}, {}
    for name, own in by_package.items():
        if name not in loose:
            wishes += own
            continue
        node = graph.node(name)
        assert node is not None  # noqa: S101 - only packages with metadata are wishes
        anchor = anchors[name] = own[0].mask
        allowed = node.domain.some & ~anchor & ~node.early
        allowed &= ~sum(
            1 << place
            for place, release in enumerate(node.releases)
            if node.is_withdrawn(place) or isinstance(release, SupposedRelease)
        )
        if name in selectable:  # the rules know of no others
            allowed &= _translate(selectable[name], node.domain.index, 0)
        if name in DISPENSABLE:
            allowed |= node.domain.absent
        if not allowed:
            return []
        wishes += [Wish(name, allowed), *own[1:]]
        costs = sorted((move_cost(node.domain, place, anchor), -place) for place in iterate_bits(allowed))
        prefer[name] = [1 << -place for _, place in costs]
    result = resolution.search.solve(wishes, prefer)
    if isinstance(result, SearchFailure):
        return list(dict.fromkeys(resolution.wishes[wish].name for wish in result.wishes if wish in resolution.wishes))
    cost, changes = 0, {}
    for name, anchor in anchors.items():
        domain = graph.node(name).domain  # type: ignore[union-attr]
        place = result[name].bit_length() - 1 if name in result else len(domain.values)
        cost += move_cost(domain, place, anchor)
        changes[name] = domain.text(place)
    return PinMove(cost=cost, changes=changes)


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
