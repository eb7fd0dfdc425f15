"""Which cells fit a partial query, or why none does. Pure.

Published cells come first, the best proven before the others; then the newest cell of the whole universe for each
family of flash attention: first those of which nothing has to be compiled. What the query leaves open is of the time
of what it states. When no cell fits, the answer is a minimal set of demands that collide, the rules by which
they do, and for each demand the smallest relaxation that helps.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from knowngood.core.cell import NO_FLASH_ATTN, Cell
from knowngood.evidence.cell_answer import SettingState, setting_state
from knowngood.evidence.cell_standing import CellStanding
from knowngood_facts.compat.added_package_check import forecast_addition
from knowngood_facts.compat.broken_pairs import find_excluded_releases
from knowngood_facts.compat.cell_judgement import judge_setting
from knowngood_facts.compat.coverage import Coverage, UnreadKind, UnreadPart, find_coverage
from knowngood_facts.compat.demands import (
    Demand,
    DemandProblem,
    find_minimal_conflict,
    find_minimal_rules,
    find_relaxation,
)
from knowngood_facts.compat.findings import AXES, Finding, fact_finding, fill_template, finding_from_box, sort_findings
from knowngood_facts.compat.matrix_cells import (
    PublishedCells,
    find_lock_conflict,
    find_wanted_trainers,
    has_wanted_framework,
    packages_of_cell,
    values_of_cell,
)
from knowngood_facts.compat.query import DEFAULT_MACHINE, MACHINE, PackageSpec, Query
from knowngood_facts.compat.query_placement import QueryPlacement, exclude_broken_releases, place_query
from knowngood_facts.compat.query_resolution import (
    QueryResolution,
    find_nearest_releases,
    resolve_query_packages,
    resolve_with_cell,
)
from knowngood_facts.compat.resolution_findings import list_names
from knowngood_facts.compat.rule_boxes import OUTGROWN
from knowngood_facts.compat.suggestions import possible_warning_boxes, stated_condition_boxes
from knowngood_facts.compat.trainer_findings import describe_trainers, note_absent_packages
from knowngood_facts.compat.universe import ALWAYS_INSTALLED, CELL_PACKAGES, Universe
from knowngood_facts.compat.use_conditions import settle_query
from knowngood_facts.compat.value_domain import NONE, iterate_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from knowngood_facts.compat.box_index import Assignment


@dataclass(frozen=True, kw_only=True)
class CellChoice:
    """A cell that fulfils a query."""

    cell: Cell
    tier: str
    """How far the cell is proven; `none` when it is not in matrix.yaml."""
    published: bool
    """Whether it is a cell of matrix.yaml."""
    extras: Mapping[str, str]
    """The packages of the query that are not axes of a cell: name -> version."""
    findings: tuple[Finding, ...] = ()
    setting: SettingState | None = None
    """What is known of the attention setting that the query states."""

    def document(self) -> dict[str, Any]:
        """The value as `pick --json` prints it."""
        return {
            "id": str(self.cell),
            "axes": {str(axis): value for axis, value in self.cell.axes().items()},
            "published": self.published,
            "tier": self.tier,
            "extras": dict(self.extras),
            "findings": [finding.document() for finding in self.findings],
            "setting": self.setting.document() if self.setting else None,
        }


@dataclass(frozen=True, kw_only=True)
class DemandClash:
    """One demand of a minimal conflict."""

    demand: str
    rules: tuple[Mapping[str, Any], ...]
    relax: Mapping[str, Any] | None
    """`{"change": {...}, "cell": ...}`: the nearest value with which all the other demands can be met; `None` when
    giving this demand up alone does not help."""

    def document(self) -> dict[str, Any]:
        """The value as `pick --json` prints it."""
        return {"demand": self.demand, "rules": [dict(rule) for rule in self.rules], "relax": self.relax}


@dataclass(frozen=True, kw_only=True)
class PickAnswer:
    """The cells that fit a query, or the demands that collide."""

    choices: tuple[CellChoice, ...]
    conflict: tuple[DemandClash, ...]
    considered: int
    """The number of combinations of the cells' axes."""
    findings: tuple[Finding, ...] = ()
    unknown: bool = False
    """The query names something that facts do not cover."""
    unsure: bool = False
    """Some cell would fit if what is not known were so: then the conflict is only that nothing is known to fit."""
    uncovered: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The cells of matrix.yaml that fit but for the attention setting: id -> what is known of the setting there."""
    coverage: Coverage = field(default_factory=Coverage)
    """What nobody read, and the day up to which the rest was read."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 1 no cell can fit, 3 facts do not cover the whole query, else 0."""
        if self.conflict:
            return 3 if self.unsure else 1
        return 3 if self.unknown else 0 if self.choices else 1

    def document(self) -> dict[str, Any]:
        """The value as `pick --json` prints it."""
        return {
            "cells": [choice.document() for choice in self.choices],
            "conflict": [clash.document() for clash in self.conflict],
            "considered": self.considered,
            "findings": [finding.document() for finding in self.findings],
            "uncovered": dict(self.uncovered),
            "left_out": dict(self.left_out),
            **self.coverage.document(),
        }


_SETTINGS = {"flash-attn": "fa2", "flash-attn-4": "fa4"}
"""Package of flash attention -> the attention setting that uses it."""

FAMILIES = tuple(_SETTINGS)

NOT_FRAMEWORKS = AXES | set(CELL_PACKAGES)
"""The variables that are neither frameworks nor other packages beside the axes of a cell."""


def pick_cells(universe: Universe, query: Query, published: PublishedCells, *, count: int = 3) -> PickAnswer:
    """Return up to `count` cells that fit a query; raises `UsageError` for a name that is not known.

    A package without facts is added to cells that rules choose. Where none of those takes a release of its time, cells
    are looked for that go with its newest ones.
    """
    answer = _pick_cells(universe, query, published, count)
    if answer.choices:
        return answer
    for pinned in _pin_newest_releases(universe, query):
        with_newest = _pick_cells(universe, pinned, published, count)
        if with_newest.choices:
            return with_newest
    return answer


_TRIED_RELEASES = 3
"""So many of a package's newest releases are tried, each with cells of its own."""


def _pin_newest_releases(universe: Universe, query: Query) -> Iterator[Query]:
    """Yield a query with the newest release, then older ones, of its packages that only metadata is about."""
    newest = dict[int, list[str]]()
    for place, package in enumerate(query.packages):
        known = universe.metadata.find_package(package.name)
        if known is None or package.specifier or package.name in universe.packages:
            continue
        order = known.domain.newest_first(known.domain.final & known.domain.some)
        newest[place] = [known.domain.text(item) for item in order if not known.releases[item].yanked]
    for number in range(_TRIED_RELEASES if newest else 0):
        packages = list(query.packages)
        for place, releases in newest.items():
            if releases:
                release = releases[min(number, len(releases) - 1)]
                packages[place] = replace(packages[place], specifier=f"=={release}")
        yield replace(query, packages=tuple(packages))


def _pick_cells(universe: Universe, query: Query, published: PublishedCells, count: int) -> PickAnswer:
    universe.begin_question()
    query, builds = _without_torch_build(universe, settle_query(universe, query).query)
    placement = place_query(universe, query)
    findings = tuple(sort_findings(placement.findings))
    considered = count_combinations(universe)
    broken = any(finding.severity == "error" for finding in findings)
    unknown = not broken and any(item.id.removeprefix("unknown:") in universe.index.domains for item in findings)
    machine = query.stated_conditions[MACHINE]
    packages = (*placement.packages, *query.constraints)

    def resolve() -> QueryResolution | None:
        return resolve_query_packages(universe, packages, query.axes, machine)

    # Where rules know what the packages require, nothing else of the question is resolved, and the same packages
    # resolve in the same way for any driver or attention.
    key = repr((packages, query.axes.get("python"), query.axes.get("glibc"), machine))
    resolved = resolve() if placement.declared else universe.cached(key, resolve)
    coverage = find_coverage(placement, query, resolved)
    coverage = replace(coverage, parts=(*coverage.parts, *builds))
    if unknown or broken:
        return PickAnswer(
            choices=(), conflict=(), considered=considered, findings=findings, unknown=unknown, coverage=coverage
        )
    host = placement.foreign_host
    if host and placement.machine not in {cell.host.machine for cell in published.cells} - {DEFAULT_MACHINE}:
        clash = _clash_with_host(host)
        return PickAnswer(choices=(), conflict=(clash,), considered=considered, findings=(host, *findings))
    _exclude_what_settled_packages_break(placement, query)
    problem = pick_problem(placement, query, published)
    without_facts = {name: text for name, text in placement.uncovered.items() if name not in placement.declared}
    choices: dict[str, CellChoice] = {}
    left_out: dict[str, str] = {}
    retired_cells: list[Finding] = []
    wanted = find_wanted_trainers(placement.packages, published.cells)
    every = itertools.chain(
        find_published_choices(placement, problem, published, wanted),
        () if host else _newest_choices(placement, problem, query),  # the facts are about wheels for x86-64
    )
    for choice in _resolving_choices(placement, problem, every, published, left_out):
        name = str(choice.cell)
        retired = None if choice.published else published.find_retired(choice.cell, choice.extras)
        if retired:
            because = published.retired[retired].sentence(str(retired))
            retired_cells.append(fact_finding(f"retired:{retired}", "info", {}, because, ["matrix.yaml"]))
            continue
        state = None
        if query.attn:
            standing = published.standing(name) if choice.published else CellStanding()
            judgement = judge_setting(universe, choice.cell, query.attn)
            state = setting_state(judgement, choice.cell, query.attn, standing)
            if choice.published and not state.trains:
                left_out[name] = f"{query.attn}: {state.text}: {state.reason}"
        if not _is_cell_of_matrix(choice, published) and (choice.extras or name not in left_out):
            choices.setdefault(name, replace(choice, setting=state))
        if len(choices) == count:
            break
    offered = [choice.cell for choice in choices.values() if choice.published]
    about_trainers = describe_trainers(placement, published, wanted, offered)
    conflict = () if choices or retired_cells else tuple(_find_all_clashes(placement, problem, published))
    return PickAnswer(
        choices=tuple(choices.values()),
        conflict=conflict,
        considered=considered,
        unsure=bool(conflict) and not host and _without_unknown(problem).possible(problem.demands),
        findings=(*([host] if host and not choices else []), *findings, *about_trainers, *retired_cells),
        unknown=placement.unknown or not coverage.is_complete,
        uncovered=without_facts,
        left_out=left_out,
        coverage=coverage,
    )


def _without_torch_build(universe: Universe, query: Query) -> tuple[Query, list[UnreadPart]]:
    """Return a query that asks for torch's release where it names a build of another index, and what is not known then.

    Cells have the build of the default index.
    """
    packages, unread = list(query.packages), []
    for place, package in enumerate(packages):
        release = f"{package.version}+{package.local}"
        if package.name == "torch" and release in universe.index.domains["torch"].index:
            packages[place] = replace(package, local=None)
            cuda = universe.space.book.fact("torch", str(package.version), "cuda")
            because = f"cells have the build of the default index (CUDA {cuda}), and that build's was not looked at"
            unread.append(
                UnreadPart(package="torch", release=release, kind=UnreadKind.GPU_CODE, because=because, matters=True)
            )
    return replace(query, packages=tuple(packages)), unread


def _exclude_what_settled_packages_break(placement: QueryPlacement, query: Query) -> None:
    """Demand releases that can be imported with what follows from the query's pins, as with the pins themselves."""
    resolved = (
        resolve_query_packages(placement.universe, placement.packages, query.axes, placement.machine)
        if placement.declared
        else None
    )
    named = {package.name for package in placement.packages}
    for name, version in resolved.resolution.settled.items() if resolved is not None else ():
        if name not in named and name not in placement.universe.packages:
            text = f"{name}=={version}, which follows from what is asked for"
            exclude_broken_releases(placement, name, version, text)


def _find_all_clashes(
    placement: QueryPlacement, problem: DemandProblem, published: PublishedCells
) -> Iterator[DemandClash]:
    """Yield a minimal set of demands that collide, each with its rules.

    For a host that facts say little about, these are the host and the other demands that no cell for it meets.
    """
    host = placement.foreign_host
    if host is None:
        yield from find_clashes(placement, problem)
        return
    first = _clash_with_host(host)
    kept = list(problem.demands)
    for demand in problem.demands:
        fewer = tuple(item for item in kept if item is not demand)
        fits = demand.text == first.demand or any(
            find_published_choices(placement, replace(problem, demands=fewer), published, {})
        )
        kept = kept if fits else list(fewer)
    yield replace(first, relax=_relax_host(placement, problem, published, first.demand))
    for demand in kept:
        if demand.text != first.demand:
            others = tuple(item for item in problem.demands if item is not demand)
            relax = _relax_on_host(placement, replace(problem, demands=others), published, demand)
            yield replace(first, demand=demand.text, relax=relax)


def _relax_host(
    placement: QueryPlacement, problem: DemandProblem, published: PublishedCells, host: str
) -> dict[str, Any] | None:
    """The nearest GPU on a host of x86-64 with which all other demands can be met."""
    gpus = placement.universe.gpus
    usual = replace(placement, machine=DEFAULT_MACHINE)
    cards = {sm: [card for card in shown if card not in gpus.aarch64] for sm, (_, shown) in gpus.sections.items()}
    domain = problem.index.domains["gpu"]
    base = dict(problem.base) | {"gpu": sum(1 << domain.index[sm] for sm, own in cards.items() if own)}
    there = replace(problem, base=base)
    demand = next((item for item in problem.demands if item.text == host), None)
    choice = next(find_published_choices(usual, there, published, {}), None)
    assignment = None if choice else there.solve(problem.demands)
    if choice or assignment:
        cell = choice.cell if choice else cell_from_assignment(placement.universe, assignment or {})
        return {"change": {"gpu": cards[cell.gpu][0]} if demand else {MACHINE: DEFAULT_MACHINE}, "cell": str(cell)}
    return _relax(usual, there, demand) if demand else None


def _relax_on_host(
    placement: QueryPlacement, problem: DemandProblem, published: PublishedCells, demand: Demand
) -> dict[str, Any] | None:
    """The nearest value of a demand's variable that a cell for the host has, of those that meet the other demands."""
    domain = problem.index.domains[demand.variable]
    for place in domain.nearest_places(domain.all & ~demand.mask, demand.mask):
        one = Demand(text="", variable=demand.variable, mask=1 << place)
        tried = replace(problem, demands=(*problem.demands, one))
        if choice := next(find_published_choices(placement, tried, published, {}), None):
            return {"change": {demand.variable: domain.text(place)}, "cell": str(choice.cell)}
    return None


def _clash_with_host(host: Finding) -> DemandClash:
    demand = " ".join(f"{name}={value}" for name, value in host.packages.items())
    return DemandClash(demand=demand, rules=(_rule_document(host),), relax=None)


def _resolving_choices(
    placement: QueryPlacement,
    problem: DemandProblem,
    choices: Iterable[CellChoice],
    published: PublishedCells,
    left_out: dict[str, str],
) -> Iterator[CellChoice]:
    """Yield the choices whose packages resolve with the query's; note in `left_out` why the others do not.

    Without packages that only metadata is about, the rules know what the packages require of each other.
    """
    if not placement.declared:
        yield from choices
        return
    without_facts = [package for package in placement.packages if package.name in placement.declared]
    trainers = find_wanted_trainers(without_facts, published.cells)
    for choice in choices:
        locked = published.read_lock(choice.cell) if choice.published else {}
        if reason := find_lock_conflict(without_facts, locked):
            left_out[str(choice.cell)] = reason
            continue
        resolving = _resolving_choice(placement, problem, choice)
        if isinstance(resolving, Finding):
            left_out[str(choice.cell)] = resolving.because
            continue
        with_packages = (
            _choice_with_stack(placement, resolving, published, without_facts)
            if choice.published
            else _new_choice_with_packages(placement, resolving, without_facts, trainers)
        )
        if isinstance(with_packages, str):
            left_out[str(resolving.cell)] = with_packages
        else:
            yield with_packages


def _choice_with_stack(
    placement: QueryPlacement, choice: CellChoice, published: PublishedCells, wanted: Sequence[PackageSpec]
) -> CellChoice | str:
    """Return a cell of matrix.yaml to which `run` can add what it lacks: this one, or a stack on it; else why not."""
    reason = ""
    stacks = [cell for cell in published.cells if cell.framework_pin and cell.without_framework() == choice.cell]
    for cell in (choice.cell, *stacks):
        has = {**packages_of_cell(cell), **published.read_lock(cell)}
        absent = [item for item in wanted if item.name not in has and item.specifier != NONE]
        if not absent:
            return choice if cell == choice.cell else replace(choice, cell=cell, tier=str(published.tier(str(cell))))
        forecast = forecast_addition(placement.universe, cell, has, absent)
        if not forecast.reason or forecast.without_wheel:
            notes = note_absent_packages(cell, absent, forecast)
            tier = choice.tier if cell == choice.cell else str(published.tier(str(cell)))
            return replace(choice, cell=cell, tier=tier, findings=(*choice.findings, *notes))
        reason = reason or f"{list_names(item.name for item in absent)}: {forecast.reason}"
    return reason


def _new_choice_with_packages(
    placement: QueryPlacement,
    choice: CellChoice,
    wanted: Sequence[PackageSpec],
    trainers: Mapping[str, PackageSpec],
) -> CellChoice | str:
    """Return a cell that is not in matrix.yaml with the releases of its trainers; why not where they cannot be had."""
    has = packages_of_cell(choice.cell) | dict(choice.extras)
    absent = [item for item in wanted if item.name not in has and item.specifier != NONE]
    forecast = forecast_addition(placement.universe, choice.cell, has, absent) if absent else None
    if forecast and forecast.reason and not forecast.without_wheel:
        return forecast.reason
    chosen = forecast.versions if forecast else {}
    pinned = {name: version for name, item in trainers.items() if (version := item.version or chosen.get(name))}
    return replace(choice, extras={**choice.extras, **pinned})


def _resolving_choice(placement: QueryPlacement, problem: DemandProblem, choice: CellChoice) -> CellChoice | Finding:
    """Return a choice when its packages resolve with the query's, else the nearest that does, or why none does."""
    cell = choice.cell
    versions = {**packages_of_cell(cell), **choice.extras}
    resolved = resolve_with_cell(placement, cell.python, versions)
    if resolved is None or not resolved.findings:
        return choice
    nearest = (
        None
        if choice.published
        else find_nearest_releases(placement, {"python": cell.python, "gpu": cell.gpu}, versions, problem.among)
    )
    if nearest is None:
        return resolved.findings[0]
    domains = problem.index.domains
    places = {
        name: domains[name].index.get(value, len(domains[name].values))
        for name, value in (nearest | {"gpu": cell.gpu, "python": cell.python}).items()
        if name in domains
    }
    absent = {name: len(domains[name].values) for name in placement.universe.packages}
    return _choice_from_assignment(placement, absent | places)


def _is_cell_of_matrix(choice: CellChoice, published: PublishedCells) -> bool:
    """Whether a choice that is not from matrix.yaml is, with one of its packages as the framework, a cell of it."""
    frameworks = (f"{name}{version}" for name, version in choice.extras.items())
    return not choice.published and any(
        cell.framework == framework and replace(cell, framework=choice.cell.framework) == choice.cell
        for framework in frameworks
        for cell in published.cells
    )


def count_combinations(universe: Universe) -> int:
    """Return the number of combinations of the cells' axes for which there are facts."""
    domains = universe.index.domains
    product = 1 + sum(len(domains[name].values) for name in FAMILIES)
    for name in ("gpu", "torch", "transformers", "triton", "python"):
        product *= len(domains[name].values)
    return product


def pick_problem(placement: QueryPlacement, query: Query, published: PublishedCells) -> DemandProblem:
    """Return the query as a search problem whose best solution has the newest releases."""
    universe = placement.universe
    index = universe.index
    base = dict(universe.selectable)
    for name in ALWAYS_INSTALLED:
        base[name] &= index.domains[name].some
    base["gpu"] = sum(
        1 << place
        for place, name in enumerate(index.domains["gpu"].values)
        # No image for x86-64 runs there.
        if placement.machine != DEFAULT_MACHINE or not universe.gpus.has_only_arm_hosts([name])
    )
    for box, _ in placement.wheel_boxes:
        if box.rule.severity != "error" and base["torch"] & ~box.masks.get("torch", 0):
            base["torch"] &= ~box.masks.get("torch", 0)  # of what is not known to load
    for demand in placement.demands:
        # A pre-release or a withdrawn release may be chosen when the query names it.
        if demand.variable in base and demand.mask & base[demand.variable] == 0:
            base[demand.variable] |= demand.mask
    return DemandProblem(
        index=index,
        demands=(*placement.demands, *placement.implied_demands),
        base=base,
        # A cell has one flash attention; for other combinations that rule is only a warning.
        among=index.errors
        | index.unknown_errors
        | stated_condition_boxes(universe, query.stated_conditions)
        | index.boxes_of_rule.get("one-flash-attention", 0)
        | _outgrown_boxes(placement),
        order=_preferred_order(placement, published),
        # A framework that the query names is the newest that fits, and a Python is one that a base has, before the
        # other packages are the newest.
        first=(*(item.variable for item in placement.demands if item.variable not in NOT_FRAMEWORKS), "python"),
    )


def _outgrown_boxes(placement: QueryPlacement) -> int:
    """The boxes of outgrown releases, without those of which the query names both releases."""
    index = placement.universe.index
    boxes: int = placement.universe.cached(
        "outgrown", lambda: index.select(lambda box: box.rule.id.startswith(OUTGROWN))
    )
    named = (bit for bit in iterate_bits(boxes) if placement.assignment.keys() >= index.boxes[bit].masks.keys())
    return boxes & ~sum(1 << bit for bit in named)


def _preferred_order(placement: QueryPlacement, published: PublishedCells) -> dict[str, Sequence[int]]:
    """Prefer the absence of packages that the query does not name, and the Pythons and GPUs of published cells."""
    universe = placement.universe
    demanded = {demand.variable for demand in placement.demands}
    domains = universe.index.domains
    newest: Mapping[str, Sequence[int]] = universe.cached(
        "newest", lambda: {name: tuple(domain.newest_first(domain.some)) for name, domain in domains.items()}
    )
    others: Mapping[str, Sequence[int]] = universe.cached(
        "others",
        lambda: {
            name: (*iterate_bits(domains[name].absent), *newest[name])
            for name in universe.packages
            if name not in CELL_PACKAGES
        },
    )
    order = {name: places for name, places in others.items() if name not in demanded}
    # A Python that a base image has comes first: a cell can be built only with such a one.
    for name, first in (("python", published.pythons), ("gpu", published.gpus)):
        places = [domains[name].index[value] for value in first if value in domains[name].index]
        order[name] = tuple(dict.fromkeys([*places, *newest[name]]))
    return order


def find_published_choices(
    placement: QueryPlacement, problem: DemandProblem, published: PublishedCells, trainers: Mapping[str, PackageSpec]
) -> Iterator[CellChoice]:
    """Yield the fitting cells of matrix.yaml: first those with one of the trainers, which no other query is for."""
    domains = problem.index.domains
    with_trainer = [cell for cell in published.ranked if has_wanted_framework(cell, trainers)]
    for cell in (*with_trainer, *(cell for cell in published.ranked if not cell.framework_pin)):
        if cell.host.machine != placement.machine:
            continue
        values = values_of_cell(cell)
        if cell.framework_pin and cell.framework_pin[0] not in domains:
            values = {name: value for name, value in values.items() if name != cell.framework_pin[0]}
        sets = dict(problem.base)
        try:
            for name, value in values.items():
                sets[name] = domains[name].absent if value == "none" else 1 << domains[name].index[value]
        except KeyError:
            continue
        for name in placement.universe.packages:
            sets[name] = sets[name] if name in values else domains[name].absent
        # Most cells are of another GPU or release than is asked for, which needs no search to see.
        if any(demand.variable in sets and not sets[demand.variable] & demand.mask for demand in problem.demands):
            continue
        assignment = replace(problem, base=sets).solve(problem.demands)
        if assignment is not None:
            tier = str(published.tier(str(cell)))
            findings = _warnings(placement, assignment)
            yield CellChoice(cell=cell, tier=tier, published=True, extras={}, findings=findings)


def _newest_choices(placement: QueryPlacement, problem: DemandProblem, query: Query) -> Iterator[CellChoice]:
    """The newest fitting cells: one with flash-attn 4, one without either, and one with flash-attn 2, to be compiled.

    Each flash attention is one that its transformers uses. Where there are some, they are cells that no incident
    concerns under conditions that the query leaves open.
    """
    plain = _newest_of_family(placement, problem, query, None)
    fa2, fa4 = (_newest_of_family(placement, problem, query, family, beside=plain) for family in FAMILIES)
    # A flash attention that needs other releases than the rest of the time is an offer for those who want it.
    foreign = plain and fa4 and any(plain[name] != fa4[name] for name in ALWAYS_INSTALLED)
    for assignment in (plain, fa4, fa2) if foreign else (fa4, plain, fa2):
        if assignment is not None:
            yield _choice_from_assignment(placement, assignment)


def _newest_of_family(
    placement: QueryPlacement,
    problem: DemandProblem,
    query: Query,
    family: str | None,
    beside: Assignment | None = None,
) -> Assignment | None:
    """Return the newest combination with one family of flash attention, of the time of its oldest package.

    Beside a combination without any, it is one for the attention setting of that family.
    """
    universe = placement.universe
    domains, named = universe.index.domains, {demand.variable for demand in placement.demands}
    base = _values_with_family(problem, family)
    if family and beside and family not in named:
        base["attn"] = domains["attn"].mask(_SETTINGS[family])
    problem = replace(problem, base=base)
    newest = problem.solve(problem.demands)
    if newest is None:
        return None
    problem = replace(problem, order={**problem.order, **_order_of_its_time(placement, newest)})
    chosen = problem.solve(problem.demands) or newest
    # What the query names, and torch, stay the newest; of the rest another release may be without a known failure.
    fixed = base | {name: 1 << chosen[name] for name in {"torch", *named} if name in base}
    for avoided in _avoidable_boxes(placement, query.stated_conditions):
        better = replace(problem, base=fixed, among=problem.among | avoided).solve(problem.demands)
        if better is not None:
            return better
    return chosen


def _avoidable_boxes(placement: QueryPlacement, conditions: Mapping[str, str]) -> tuple[int, int]:
    """Return boxes of which the query leaves a value open: warnings and incidents under open conditions; the latter."""
    boxes = placement.universe.index.boxes
    every = incidents = 0
    for bit in iterate_bits(possible_warning_boxes(placement.universe, conditions)):
        if not boxes[bit].masks.keys() <= placement.assignment.keys():
            every |= 1 << bit
            incidents |= (not boxes[bit].rule.always) << bit
    return every, incidents


def _order_of_its_time(placement: QueryPlacement, newest: Assignment) -> dict[str, Sequence[int]]:
    """Prefer, of what the query leaves open, the newest releases of the time of the oldest package.

    That time ends when a newer release of a package of the query, or of torch, succeeded the newest that fits; but not
    before the newest of these was there.
    """
    domains, metadata = placement.universe.index.domains, placement.universe.metadata
    stated = {demand.variable for demand in placement.demands} & set(placement.universe.packages)
    releases = placement.declared | {name: domains[name].text(newest[name]) for name in stated}
    spans = [_days_of_release(placement, name, version) for name, version in releases.items()]
    _, torch_end = _days_of_release(placement, "torch", domains["torch"].text(newest["torch"]))
    end = max([min([torch_end, *(last for _, last in spans)]), *(first for first, _ in spans)])
    order: dict[str, Sequence[int]] = {}
    for name in CELL_PACKAGES if end < _OPEN else ():
        package, domain = metadata.find_package(name), domains[name]
        if package is None or name in releases:
            continue
        days = {text: package.releases[place].uploaded for text, place in package.domain.index.items()}
        newest_first = list(domain.newest_first(domain.some))
        of_time = [place for place in newest_first if days.get(domain.text(place), _OPEN) <= end]
        order[name] = (*of_time, *(place for place in reversed(newest_first) if place not in of_time))
    return order


_OPEN = "9999"
"""A day after all others."""


def _days_of_release(placement: QueryPlacement, name: str, version: str) -> tuple[str, str]:
    """Return the day of a release, and that of the next final one; `_OPEN` for the newest, or when unknown."""
    package = placement.universe.metadata.find_package(name)
    place = package.domain.index.get(version.partition("+")[0]) if package else None
    if package is None or place is None:
        return "", _OPEN
    first = package.releases[place].uploaded
    later = package.domain.final & package.domain.some & ~((2 << place) - 1)
    last = min((package.releases[item].uploaded or _OPEN for item in iterate_bits(later)), default=_OPEN)
    return first, max(first, last)


def _values_with_family(problem: DemandProblem, family: str | None) -> dict[str, int]:
    """The allowed values with one family of flash attention present and the other absent; `None`: both absent."""
    base = dict(problem.base)
    for name in FAMILIES:
        domain = problem.index.domains[name]
        base[name] = base[name] & domain.some if name == family else domain.absent
    return base


def _choice_from_assignment(placement: QueryPlacement, assignment: Assignment) -> CellChoice:
    cell = cell_from_assignment(placement.universe, assignment)
    demanded = list(dict.fromkeys(demand.variable for demand in placement.demands))
    domains = placement.universe.index.domains
    extras = {
        name: domains[name].text(assignment[name])
        for name in dict.fromkeys((*demanded, *placement.universe.packages))
        if name not in NOT_FRAMEWORKS and (name in demanded or assignment[name] < len(domains[name].values))
    }
    findings = _warnings(placement, assignment)
    return CellChoice(cell=cell, tier="none", published=False, extras=extras, findings=findings)


def cell_from_assignment(universe: Universe, assignment: Mapping[str, int]) -> Cell:
    """Return the cell with the values of an assignment."""
    domains = universe.index.domains
    values = {name: domains[name].text(assignment[name]) for name in (*CELL_PACKAGES, "gpu", "python")}
    flash = next((values[name] for name in FAMILIES if values[name] != "none"), NO_FLASH_ATTN)
    return _cell(
        gpu=values["gpu"],
        cuda=str(universe.space.book.fact("torch", values["torch"], "cuda")),
        torch=values["torch"].partition("+")[0],
        transformers=values["transformers"],
        flash_attn=flash,
        triton=values["triton"],
        python=values["python"],
    )


_cell = lru_cache(maxsize=10_000)(Cell)
"""A cell validates its values when it is created, so the same cell is created once."""


def _warnings(placement: QueryPlacement, chosen: Assignment) -> tuple[Finding, ...]:
    index = placement.universe.index
    assignment = {name: chosen[name] for name in (*CELL_PACKAGES, "gpu", "python")} | placement.assignment
    boxes = (index.boxes[bit] for bit in iterate_bits(index.find_broken(assignment, index.advice)))
    return tuple(sort_findings([finding_from_box(index, box, assignment, placement.as_written, {}) for box in boxes]))


def _rule_document(finding: Finding) -> dict[str, Any]:
    """A finding in the form of a rule of a conflict."""
    source, confidence = list(finding.source), finding.confidence
    return {"id": finding.id, "because": finding.because, "source": source, "confidence": confidence}


def _without_unknown(problem: DemandProblem) -> DemandProblem:
    """Return the problem without the rules of which it is not known whether they are broken."""
    return replace(problem, among=problem.among & ~problem.index.unknown_errors)


def find_clashes(placement: QueryPlacement, problem: DemandProblem) -> list[DemandClash]:
    """Return a minimal set of demands that collide, each with its rules and its smallest relaxation.

    What is not known is among the reasons only where what is known does not suffice.
    """
    index, known = problem.index, _without_unknown(problem)
    sure = problem if known.possible(known.demands) else known
    demands = find_minimal_conflict(sure)
    boxes = find_minimal_rules(sure, demands)
    assignment = {
        name: place for name, place in placement.assignment.items() if any(d.variable == name for d in demands)
    }
    rules = [
        {
            "id": box.rule.id,
            "because": fill_template(index.space, box.rule.because, box, assignment, placement.as_written),
            "source": [fill_template(index.space, text, box, assignment, {}) for text in box.rule.source],
            "confidence": box.rule.confidence,
        }
        for box in boxes
    ]
    clashes = []
    for demand in demands:
        own = [rule for rule, box in zip(rules, boxes, strict=True) if demand.variable in box.masks]
        own += [_rule_document(demand.reason)] if demand.reason else []
        # What follows from a package is given up with it.
        change = _relax_owner if demand.owner in placement.declared else _relax
        relax = change(placement, problem, demand)
        clashes.append(DemandClash(demand=demand.text, rules=tuple(own or rules), relax=relax))
    return clashes


def _relax(placement: QueryPlacement, problem: DemandProblem, demand: Demand) -> dict[str, Any] | None:
    """The nearest value of a demand's variable with which all other demands can be met, over all families."""
    others = [item for item in problem.demands if item is not demand]
    best: tuple[int, dict[str, Any]] | None = None
    for family in (None, *reversed(FAMILIES)):
        # A flash attention that the others do not ask for counts only when its value is nearer.
        base = _values_with_family(problem, family)
        relaxation = find_relaxation(replace(problem, base=base), demand, others, best and best[0])
        if relaxation is not None:
            place, assignment = relaxation
            domain = problem.index.domains[demand.variable]
            cell = str(cell_from_assignment(placement.universe, assignment))
            change = {"change": {demand.variable: domain.text(place)}, "cell": cell}
            best = domain.distance(place, demand.mask), change
    return None if best is None else best[1]


def _relax_owner(placement: QueryPlacement, problem: DemandProblem, demand: Demand) -> dict[str, Any] | None:
    """The nearest release of the package from which a demand follows with which all other demands can be met."""
    universe, owner = placement.universe, demand.owner
    known = universe.metadata.find_package(owner)
    pinned = known.domain.mask(f"=={placement.declared[owner]}") if known else 0
    others = [item for item in problem.demands if item.owner != owner]
    assignment = problem.solve(others)
    if known is None or not pinned or assignment is None:
        return None
    domains = universe.index.domains
    for place in known.domain.nearest_places(known.domain.final & known.domain.some & ~pinned, pinned):
        release = known.domain.text(place)
        excluded = find_excluded_releases(owner, release, universe.packages, universe.broken_uses)
        if not any(item.mask_in(domains[name]) >> assignment[name] & 1 for name, item in excluded.items()):
            return {"change": {owner: release}, "cell": str(cell_from_assignment(universe, assignment))}
    return None
