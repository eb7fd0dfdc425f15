"""Why a list of requirements cannot be resolved, as chains that a person can read. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood_facts.compat.findings import Finding
from knowngood_facts.compat.metadata_store import specifier_mask
from knowngood_facts.compat.requirement_graph import Conflict, Excludes, RequirementResolution, Requires
from knowngood_facts.compat.value_domain import NONE, ValueDomain, iterate_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from knowngood_facts.compat.query import PackageSpec
    from knowngood_facts.compat.search import Clash

_SOURCES = 6
"""A finding names up to so many releases whose metadata it was read from."""


@dataclass(kw_only=True)
class _Edge:
    """What the releases of one package that come into question require of another package."""

    package: str
    other: str
    places: int = 0
    """The releases of the package that have this requirement."""
    allowed: int = 0
    """The values of the other package that some of them allow."""
    specifiers: dict[str, None] = field(default_factory=dict)
    extras: dict[str, None] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Chains:
    """The requirements that make a conflict, from the packages of the list on."""

    resolution: RequirementResolution
    listed: Mapping[str, PackageSpec]
    clashes: Sequence[Clash]
    masks: dict[str, int] = field(default_factory=dict)
    """Package -> its releases that come into question."""
    edges: list[_Edge] = field(default_factory=list)
    exclusions: list[tuple[Excludes, int]] = field(default_factory=list)

    def collect(self) -> None:
        """Follow the requirements from the packages of the list."""
        left = list(dict.fromkeys((*self.masks, *self.listed)))
        for name, package in self.listed.items():
            releases = self.resolution.graph.store.find_package(name)
            if releases is not None:
                self.masks[name] = releases.wanted(package)
        done: set[str] = set()
        starts = set(left)
        while left:
            name = left.pop(0)
            if name in done:
                continue
            done.add(name)
            for edge in self._edges_of(name):
                self.edges.append(edge)
                if edge.other not in starts:
                    known = self.masks.get(edge.other, -1) & edge.allowed
                    self.masks[edge.other] = known or edge.allowed
                left.append(edge.other)
        for clash in self.clashes:
            if isinstance(clash.cause, Excludes):
                mask = clash.sets[clash.cause.package] & self.masks.get(clash.cause.package, 0)
                if mask:
                    self.exclusions.append((clash.cause, mask))

    def _edges_of(self, name: str) -> list[_Edge]:
        """What the releases of a package that come into question require, for each other package."""
        edges: dict[str, _Edge] = {}
        for clash in self.clashes:
            cause = clash.cause
            if not isinstance(cause, Requires) or cause.package != name:
                continue
            node = self.resolution.graph.node(cause.dependency.name)
            if not clash.sets[name] & self.masks[name] or node is None:
                continue
            if cause.dependency.extras and f"{node.name}[{cause.dependency.extras[0]}]" in clash.sets:
                continue  # it only says that the extra is asked for
            edge = edges.setdefault(node.name, _Edge(package=name, other=node.name))
            edge.places |= clash.sets[name] & self.masks[name]
            edge.allowed |= node.domain.some & ~clash.sets.get(node.name, node.domain.all)
            edge.specifiers[cause.dependency.specifier] = None
            if cause.extra:
                edge.extras[cause.extra] = None
        return list(edges.values())

    def domain(self, name: str) -> ValueDomain:
        """Return the releases of a package."""
        node = self.resolution.graph.node(name)
        assert node is not None  # noqa: S101 - only packages with metadata are in a conflict
        return node.domain

    def describe(self, name: str, places: int = -1) -> str:
        """Return a package with those of `places` that come into question, as in `transformers 4.43.0 to 4.44.2`."""
        package = self.listed.get(name)
        if package is not None and package.version:
            return f"{name} {package.version}"
        return f"{name} {describe_range(self.domain(name), self.masks[name] & places)}"

    def path(self) -> list[_Edge] | None:
        """Return the requirements as one path between two packages of the list; `None` when they are not one."""
        starts = {edge.package: edge for edge in self.edges}
        if self.exclusions or len(starts) != len(self.edges) or len(self.listed) != 2:
            return None
        name = next((name for name in self.listed if name in starts), None)
        path: list[_Edge] = []
        while name in starts:
            path.append(starts.pop(name))
            name = path[-1].other
        return path if path and not starts and name in self.listed else None

    def simplify(self) -> None:
        """Make it one chain through one package, where every release of that one excludes what the list has.

        The search may have excluded some of these releases for another reason, which is then one more than is needed.
        """
        if len(self.listed) != 2 or self.path() is not None:
            return
        for first, last in (tuple(self.listed), tuple(self.listed)[::-1]):
            for edge in [edge for edge in self.edges if edge.package == first and edge.other not in self.listed]:
                second = self._edge_of_all(edge.other, last)
                if second is not None:
                    self.edges, self.exclusions = [edge, second], []
                    return

    def _edge_of_all(self, package: str, other: str) -> _Edge | None:
        """Return what all releases of a package in question require of a listed one; `None` if one fits that."""
        graph = self.resolution.graph
        node, target = graph.node(package), graph.node(other)
        if node is None or target is None:
            return None
        edge, python = _Edge(package=package, other=other), self.resolution.python.mask
        for place in iterate_bits(self.masks[package] & node.domain.some):
            if graph.exclusion(node, place, python) is not None:
                continue
            refused = 0
            for cause, mask in graph.required_of(node, place, other, python):
                edge.specifiers[cause.dependency.specifier] = None
                refused |= mask
            if self.masks[other] & ~refused:
                return None
            edge.places |= 1 << place
            edge.allowed |= target.domain.some & ~refused
        return edge if edge.specifiers else None

    def sentence(self) -> str:
        """Return the reason of the conflict."""
        path = self.path()
        if path is None:
            parts = self.texts()
            ends = {edge.other for edge in self.edges}
            wanted = [f"you have {_wanted_text(package)}" for name, package in self.listed.items() if name in ends]
            parts = list(dict.fromkeys([*parts, *wanted]))
            is_pair = len(parts) == len(self.edges) == 2 and len(ends) == 1
            return (", but " if is_pair else "; ").join(parts)
        first, last = path[0], path[-1]
        through = " and ".join(self.describe(edge.package) for edge in path[1:])
        bound = self._bound(last)
        reason = f"{self._subject(first)} needs {bound}" + (f" through {through}" if through else "")
        return f"{reason}, you have {_wanted_text(self.listed[last.other], with_name=False)}"

    def texts(self) -> list[str]:
        """Return what each requirement, and each exclusion, says."""
        parts = [self._requirement_text(edge) for edge in self.edges]
        return parts + [self._exclusion_text(*exclusion) for exclusion in self.exclusions]

    def _subject(self, edge: _Edge) -> str:
        extras = f" with its extra {', '.join(edge.extras)}" if edge.extras else ""
        return self.describe(edge.package, edge.places) + extras

    def _requirement_text(self, edge: _Edge) -> str:
        return f"{self._subject(edge)} needs {self._bound(edge)}"

    def _bound(self, edge: _Edge) -> str:
        """What is required, as written where all releases say the same, else as the releases that it means."""
        if not self.domain(edge.other).values:
            return f"{edge.other}, of which the index has no release"
        if len(edge.specifiers) == 1:
            missing = "" if edge.allowed else ", which no release is"
            return edge.other + self._plain_specifier(edge, next(iter(edge.specifiers))) + missing
        return f"{edge.other} {describe_range(self.domain(edge.other), edge.allowed)}"

    def _plain_specifier(self, edge: _Edge, specifier: str) -> str:
        """Return a specifier, its lower bound first, without the single releases that it excludes in vain.

        Such a list (`!=4.52.0,!=4.52.1`) is left out where the conflict is there without it.
        """
        clauses = sorted(specifier.split(","), key=lambda clause: clause.strip().startswith("<"))
        bounds = ",".join(clause for clause in clauses if not clause.strip().startswith("!="))
        beside = [other.allowed for other in self.edges if other.other == edge.other and other is not edge]
        if edge.other in self.listed:
            beside.append(self.masks[edge.other])
        left = specifier_mask(self.domain(edge.other), bounds)
        for mask in beside:
            left &= mask
        return ",".join(clauses) if not bounds or left or not beside else bounds

    def _exclusion_text(self, cause: Excludes, mask: int) -> str:
        target = self.resolution.target
        releases = f"{cause.package} {describe_range(self.domain(cause.package), mask)}"
        python = f"Python {target.minor}" + (" (free-threaded)" if target.free_threaded else "")
        return {
            "python": f"{releases} needs Python {cause.text}, you have {target.python}",
            "wheel": f"{releases} has no wheel for {python} on Linux {target.machine}"
            + (f" with glibc {target.glibc}" if target.glibc else "")
            + (", and nothing is compiled here" if target.wheels_only else ", and no sdist"),
            "withdrawn": f"{releases} was withdrawn from the index, and installers take it only when it is pinned",
        }[cause.kind]

    def sources(self) -> tuple[str, ...]:
        """Return the metadata from which the reason was read."""
        names = dict.fromkeys([*(edge.package for edge in self.edges), *(item.package for item, _ in self.exclusions)])
        return tuple(f"{self.describe(name)}: its metadata in the index" for name in list(names)[:_SOURCES])


def describe_range(domain: ValueDomain, mask: int) -> str:
    """Describe releases: `2.6.0`, `2.4.0 to 2.6.0`, or `none`."""
    names = domain.texts(mask & domain.some & domain.final or mask & domain.some)
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else NONE


def _wanted_text(package: PackageSpec, *, with_name: bool = True) -> str:
    if package.specifier == NONE:
        return f"{package.name} left out"
    if package.version:
        return f"{package.name} {package.version}" if with_name else package.version
    return f"{package.name}{package.specifier}"


def conflict_finding(resolution: RequirementResolution, conflict: Conflict) -> Finding:
    """Return the finding of a conflict: its chain, and the packages of the list that make it."""
    listed = {package.name: package for package in conflict.packages}
    chains = _Chains(resolution=resolution, listed=listed, clashes=conflict.failure.clashes)
    chains.collect()
    chains.simplify()
    return Finding(
        id=_finding_id(chains),
        kind="fact",
        severity="error",
        packages={name: package.version or package.specifier for name, package in listed.items()},
        because=chains.sentence(),
        source=chains.sources(),
        confidence="artefact",
    )


def describe_requirements(
    resolution: RequirementResolution,
    packages: Iterable[PackageSpec],
    wanted: Mapping[str, int],
    clashes: Sequence[Clash],
) -> tuple[list[str], tuple[str, ...]]:
    """Say which requirements are among clashes, and where it was read.

    Args:
        resolution: the list resolved.
        packages: the packages of the list that collide.
        wanted: these and others -> the releases that come into question.
        clashes: what excludes the rest.
    """
    listed = {item.name: item for item in packages}
    masks = {name: mask for name, mask in wanted.items() if resolution.graph.node(name) is not None}
    chains = _Chains(resolution=resolution, listed=listed, clashes=clashes, masks=masks)
    chains.collect()
    return chains.texts(), chains.sources() if chains.edges or chains.exclusions else ()


def _finding_id(chains: _Chains) -> str:
    """The id of a conflict; of one requirement alone it is that of the rule that states the same."""
    path = chains.path()
    if path is not None and len(path) == 1:
        extra = f"[{','.join(path[0].extras)}]" if path[0].extras else ""
        return f"requires:{path[0].package}{extra}:{path[0].other}"
    if not chains.edges and len(chains.exclusions) == 1:
        kind = {"python": "requires", "wheel": "wheel"}.get(chains.exclusions[0][0].kind)
        if kind:
            return f"{kind}:{chains.exclusions[0][0].package}:python"
    return "resolution:" + "+".join(chains.listed)


def list_names(names: Iterable[str], most: int = 8) -> str:
    """Return names as a list for people, the first few of many."""
    every = list(names)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest
