"""Whether `knowngood run` can add packages to a cell, as far as what packages declare decides it, and what breaks then.

Whether they can be added is really the resolver's answer, which asks the index. The forecast asks the same: wheels
only, the versions of the cell's lock stay, and no release that is more than a year older than the cell's transformers
unless somebody names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from knowngood.launch.added_packages import LONGEST_LAG
from knowngood_facts.compat.broken_pairs import CALLS, find_broken_pairs
from knowngood_facts.compat.check_answer import check_query
from knowngood_facts.compat.dependency_markers import ResolutionTarget, tag_fits
from knowngood_facts.compat.findings import Finding
from knowngood_facts.compat.query import PackageSpec, Query, pinned_package
from knowngood_facts.compat.query_resolution import resolve_on_target
from knowngood_facts.compat.resolution_findings import conflict_finding
from knowngood_facts.compat.trainer_findings import TRAINER
from knowngood_facts.compat.value_domain import NONE, iterate_bits

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.launch.added_packages import AddedPackage
    from knowngood.lock.lock_tree import CellLock
    from knowngood_facts.compat.knowledge import CompatKnowledge
    from knowngood_facts.compat.metadata_store import MetadataStore
    from knowngood_facts.compat.universe import Universe


@dataclass(frozen=True, kw_only=True)
class AdditionForecast:
    """What adding packages to a cell would give."""

    reason: str = ""
    """Why they cannot be added; empty when they can."""
    without_wheel: tuple[str, ...] = ()
    """Those of them that publish no wheel for the cell, where this is the reason: they can be compiled in it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The releases that would be added of the packages, as far as they are known."""


def forecast_addition(
    universe: Universe, cell: Cell, locked: Mapping[str, str], wanted: Sequence[PackageSpec]
) -> AdditionForecast:
    """Return whether packages can be added to a cell; `locked` are the versions that it has and that do not move."""
    pins = {name: version.partition("+")[0] for name, version in locked.items() if version != NONE}
    names = {package.name for package in wanted}
    specs = [PackageSpec(name=name, specifier=f"=={version}") for name, version in pins.items() if name not in names]
    target = ResolutionTarget(
        python=cell.python, machine=cell.host.machine, wheels_only=True, present=frozenset(pins.keys() - names)
    )
    known = [item for item in specs if universe.metadata.find_package(item.name) is not None]
    forecasts: dict[object, AdditionForecast] = universe.cached("additions", dict)
    key = (cell, tuple(wanted))
    if key not in forecasts:
        forecasts[key] = _forecast(universe, [*wanted, *known], wanted, target, pins)
    return forecasts[key]


def _forecast(
    universe: Universe,
    packages: Sequence[PackageSpec],
    wanted: Sequence[PackageSpec],
    target: ResolutionTarget,
    pins: Mapping[str, str],
) -> AdditionForecast:
    if names := tuple(item.name for item in wanted if not _has_wheel(universe.metadata, item, target)):
        what = f"no release of {' and '.join(names)} that is asked for has a wheel"
        return AdditionForecast(
            reason=f"{what} for Python {target.python} on Linux {target.machine}", without_wheel=names
        )
    resolution, _, _ = resolve_on_target(universe, tuple(packages), target)
    if resolution.conflict is not None:
        return AdditionForecast(reason=conflict_finding(resolution, resolution.conflict).because)
    for package in wanted:
        if not package.specifier and (reason := _find_lag(universe.metadata, package.name, resolution.versions, pins)):
            return AdditionForecast(reason=reason)
    versions = {**resolution.versions, **pins}
    chosen = {package.name: versions[package.name] for package in wanted if versions.get(package.name)}
    for finding in find_broken_pairs(versions, universe.broken_uses):
        if finding.severity == "error" and finding.packages.keys() & chosen.keys():
            return AdditionForecast(reason=finding.because)
    return AdditionForecast(versions=chosen)


def _has_wheel(store: MetadataStore, wanted: PackageSpec, target: ResolutionTarget) -> bool:
    """Return whether some release that is meant has a wheel for the target; true where its files are not known."""
    package = store.find_package(wanted.name)
    releases = [package.releases[place] for place in iterate_bits(package.wanted(wanted))] if package else []
    return not releases or any(tag_fits(tag, target) for release in releases for tag in release.wheels)


def _find_lag(store: MetadataStore, name: str, chosen: Mapping[str, str], pins: Mapping[str, str]) -> str:
    """Return a sentence where the chosen release of a package is of another time than the cell's transformers."""
    package, own = store.find_package(name), store.find_package("transformers")
    if package is None or own is None or name not in chosen or pins.get("transformers") not in own.domain.index:
        return ""
    place, newest = package.domain.index.get(chosen[name], 0), package.domain.final & package.domain.some
    day, own_day = (package.releases[place].uploaded, own.releases[own.domain.index[pins["transformers"]]].uploaded)
    if not (day and own_day) or newest >> place <= 1:
        return ""
    if date.fromisoformat(own_day) - date.fromisoformat(day) <= LONGEST_LAG:
        return ""
    return (
        f"the newest that goes with it is {name} {chosen[name]} of {day}, more than a year older than its transformers "
        f"{pins['transformers']} of {own_day}"
    )


def examine_added_packages(
    known: CompatKnowledge, lock: CellLock, added: Sequence[AddedPackage]
) -> tuple[list[Finding], list[str]]:
    """Return what `check` finds about added packages in a cell, errors first, and which releases nobody has read.

    What concerns the cell's own packages alone is left out, what holds only under conditions that nobody stated, and
    that no cell is made for a trainer: the cell is chosen.
    """
    cell = lock.cell
    own = [(item.name, *item.version.partition("+")[::2]) for item in lock.distributions]
    packages = [pinned_package(name, version, local or None, explicit=False) for name, version, local in own]
    packages += [pinned_package(item.name, item.version) for item in added]
    query = Query(gpu=cell.gpu, axes={"python": cell.python}, packages=tuple(packages))
    universe = known.for_query(query)
    answer = check_query(universe, query, known.published, suggest=False)
    names = {item.name for item in added}
    concerned = [
        item
        for item in answer.findings
        if names & item.packages.keys() and not item.undecided and not item.id.startswith((TRAINER, CALLS))
    ]
    unread = []
    for item in added:
        table = universe.broken_uses(item.name)
        if table is not None and item.version not in table.releases:
            read = f"{table.releases[0]} to {table.releases[-1]}"
            unread.append(f"{item.name} {item.version}: nobody has looked at what it breaks, only at releases {read}")
    return sorted(concerned, key=lambda item: item.severity != "error"), unread


def check_added_packages(lock: CellLock, added: Sequence[AddedPackage]) -> tuple[list[Finding], list[str]]:
    """Return what `examine_added_packages` does, with all that is known; the extension `knowngood.check_packages`."""
    from knowngood_facts.compat import knowledge

    return examine_added_packages(knowledge.load_knowledge(refreshed=True), lock, added)
