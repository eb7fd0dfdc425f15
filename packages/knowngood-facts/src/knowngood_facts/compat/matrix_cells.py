"""The cells of matrix.yaml and what runs proved about them, read in milliseconds for `check` and `pick`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import UsageError
from knowngood.core.hosts import HostArchitecture
from knowngood.core.matrix_entries import Retirement, axis_lists, expand_product, retirement_from_item
from knowngood.core.selection import CellFilter
from knowngood.evidence.model_runs import SeenSettings, load_model_runs, merge_model_runs
from knowngood_facts.compat.findings import AXES
from knowngood_facts.compat.query import MACHINE, PackageSpec, Query
from knowngood_facts.compat.query_placement import QueryPlacement, stated_packages
from knowngood_facts.compat.value_domain import NONE, version_matches
from knowngood_facts.compat.waivers import Waiver

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood.evidence.cell_runs import CellRuns
    from knowngood.evidence.cell_standing import CellStanding
    from knowngood.evidence.model_judgement import RunIncident
    from knowngood.evidence.run_evidence import Evidence, Tier
    from knowngood.project.release_seal import ReleaseSeal
    from knowngood_facts.compat.factbook import Factbook

# `knowngood.evidence` is imported in functions: a query that fits no cell needs none of it.


def _no_lock(cell: Cell) -> Mapping[str, str]:
    """Return that nothing is known of a cell's lock."""
    del cell
    return {}


@dataclass(frozen=True, kw_only=True)
class PublishedCells:
    """The cells of matrix.yaml, with the evidence about them."""

    cells: tuple[Cell, ...] = ()
    """The cells that are maintained."""
    retired: Mapping[Cell, Retirement] = field(default_factory=dict)
    """The cells that are not: they are never offered, and an answer about one names its successor."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    """The folder of the evidence; `None` when there is none."""
    seal: ReleaseSeal | None = None
    """The seal that must cover a run for it to count; `None` where the project names no key."""
    locked: frozenset[str] = frozenset()
    """The ids of the cells that have a lock."""
    recorded: frozenset[str] = frozenset()
    """The ids of the cells of which an image was built and recorded."""
    read_lock: Callable[[Cell], Mapping[str, str]] = _no_lock
    """Gives the packages of a cell's lock, with their versions; none for a cell without one."""

    @cached_property
    def _runs(self) -> dict[str, list[Evidence]]:
        return {}

    @cached_property
    def runs(self) -> Mapping[str, CellRuns]:
        """The runs of each cell that has some."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        from knowngood.evidence import cell_runs  # a query that names no cell needs no evidence

        return cell_runs.read_cell_runs(self.folder, self.seal)

    @cached_property
    def seen_models(self) -> SeenSettings:
        """What the runs of the model suite observed."""
        return {} if self.folder is None else merge_model_runs(load_model_runs(self.folder, self.seal)[0])

    def read_run_incidents(self) -> tuple[RunIncident, ...]:
        """Read the known failures that explain what runs of the model suite observed."""
        from knowngood_facts.compat.rule_files import load_run_incidents

        return load_run_incidents()

    @cached_property
    def proven(self) -> frozenset[str]:
        """The ids of the cells that have evidence."""
        if self.folder is None or not self.folder.is_dir():
            return frozenset()
        return frozenset(path.name for path in self.folder.iterdir() if path.is_dir())

    def valid_runs(self, cell: str) -> list[Evidence]:
        """Return the runs of a cell that no newer red run has made invalid."""
        if cell not in self.proven or self.folder is None:
            return []
        if cell not in self._runs:
            from knowngood.evidence import run_evidence

            runs, _ = run_evidence.load_cell_evidence(self.folder, cell, self.seal)
            self._runs[cell] = run_evidence.valid_runs(runs)
        return self._runs[cell]

    def standing(self, cell: str) -> CellStanding:
        """Return what the runs of a cell prove."""
        from knowngood.evidence.cell_standing import CellStanding

        return self.runs[cell].standing if cell in self.runs else CellStanding()

    def tier(self, cell: str) -> Tier:
        """Return how far a cell is proven."""
        return self.standing(cell).tier(locked=cell in self.locked, recorded=cell in self.recorded)

    def rank(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return these cells, best proven first, then newest, then those of which nothing has to be compiled.

        Evidence is read only to compare cells.
        """
        unranked = list(cells)
        if len(unranked) < 2:
            return unranked
        from knowngood.evidence.run_evidence import Tier

        order = list(Tier)
        return sorted(unranked, key=lambda cell: (order.index(self.tier(str(cell))), cell.merit), reverse=True)

    @cached_property
    def ranked(self) -> list[Cell]:
        """The cells in the order of `rank`."""
        return self.rank(self.cells)

    def find_retired(self, cell: Cell, extras: Mapping[str, str]) -> Cell | None:
        """Return the retired cell that a cell without framework is, together with extra packages; `None` for none."""
        for retired in self.retired:
            name, version = retired.framework_pin or ("", None)
            if retired.without_framework() == cell and extras.get(name) == version:
                return retired
        return None

    @cached_property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons of the cells, in the matrix's order."""
        return tuple(dict.fromkeys(cell.python for cell in self.cells))

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of the cells, those of the best proven cells first."""
        return tuple(dict.fromkeys(cell.gpu for cell in self.ranked))


def cells_from_matrix(matrix: Mapping[str, Any], book: Factbook) -> dict[Cell, Retirement | None]:
    """Return the cells in matrix.yaml's plain data, each with its retirement, `None` for a maintained one.

    A combination that is no valid cell is left out.
    """
    cells: dict[Cell, Retirement | None] = {}
    for item in matrix.get("cells") or ():
        retired = retirement_from_item(item)
        for axes in expand_product(axis_lists(item), [axis_lists(exclude) for exclude in item.get("exclude") or ()]):
            torch = axes["torch"]
            try:
                cell = Cell(
                    gpu=axes["gpu"],
                    cuda=str(book.fact("torch", torch, "cuda")),
                    torch=torch,
                    transformers=axes["transformers"],
                    flash_attn=axes["flash-attn"],
                    triton=str(book.fact("torch", torch, "triton")),
                    python=str((matrix.get("bases") or {}).get(axes["base"], {}).get("python")),
                    framework=axes["framework"],
                    host=HostArchitecture(axes["host"]),
                )
            except (UsageError, ValueError):
                continue
            cells.setdefault(cell, retired)
    for cell in _cells_of_stacks(matrix, {str(cell): cell for cell in cells}):
        cells.setdefault(cell, None)
    return cells


def _cells_of_stacks(matrix: Mapping[str, Any], cells: Mapping[str, Cell]) -> Iterator[Cell]:
    """Yield the cells of the stacks in matrix.yaml's plain data; `cells` are those that they are put on, by id."""
    aliases = matrix.get("aliases") or {}
    for trainer, item in (matrix.get("stacks") or {}).items():
        for word in _listed(item["on"]):
            if below := cells.get(aliases.get(word, word)):
                yield replace(below, framework=f"{trainer}{item['release']}")


def waivers_from_matrix(matrix: Mapping[str, Any], cells: Iterable[Cell]) -> tuple[Waiver, ...]:
    """Return the waivers in matrix.yaml's plain data; an item that is no valid amendment is left out."""
    waivers = []
    for item in matrix.get("amendments") or ():
        findings = _listed(item.get("waive", [])) if isinstance(item, Mapping) else []
        try:
            condition = CellFilter(str(item.get("when"))) if findings else None
        except UsageError:
            continue
        pins = (pin.partition("==") for pin in (_listed(item.get("override", [])) if findings else ()))
        overrides = {name: version for name, _, version in pins if version}
        waivers += [
            Waiver(
                finding=finding,
                values=overrides | values_of_cell(cell),
                on=str(item.get("on")),
                because=str(item.get("because")),
            )
            for cell in cells
            if condition and condition.matches(cell)
            for finding in findings
        ]
    return tuple(waivers)


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


@cache
def packages_of_cell(cell: Cell) -> dict[str, str]:
    """Return the packages of a cell: distribution -> version, `none` for the flash attention that it does not have."""
    return {
        "torch": cell.torch,
        "transformers": cell.transformers,
        "triton": cell.triton,
        "flash-attn": cell.flash_attn if cell.flash_attn_package == "flash-attn" else "none",
        "flash-attn-4": cell.flash_attn if cell.flash_attn_package == "flash-attn-4" else "none",
        **dict([cell.framework_pin] if cell.framework_pin else []),
    }


@cache
def values_of_cell(cell: Cell) -> dict[str, str]:
    """Return the value of each variable that a cell decides: its packages, GPU and Python."""
    return packages_of_cell(cell) | {"gpu": cell.gpu, "python": cell.python}


def find_published_cell(
    published: PublishedCells, placement: QueryPlacement, among: int, settled: Mapping[str, str]
) -> str | None:
    """Return the best proven published cell that fulfils a placed query (see `matching_cells`), `None` without one.

    `settled` are the releases that follow from the query's pins; a cell with another one does not fulfil it.
    """
    matching = matching_cells(published.cells, placement, among)
    without_facts = [package for package in placement.packages if package.name in placement.declared]
    trainers = find_wanted_trainers(without_facts, published.cells)
    for cell in published.rank(matching):
        if any(settled.get(name, value) != value for name, value in packages_of_cell(cell).items()):
            continue
        locked = published.read_lock(cell) if without_facts else {}
        has = {*locked, *([cell.framework_pin[0]] if cell.framework_pin else [])}
        if trainers.keys() <= has and find_lock_conflict(without_facts, locked) is None:
            return str(cell)
    return None


def find_retired_cell(published: PublishedCells, placement: QueryPlacement, among: int) -> str | None:
    """Return a sentence on the first retired cell that fulfils the query, with its successor; `None` without one."""
    cell = next(matching_cells(published.retired, placement, among), None)
    return None if cell is None else published.retired[cell].sentence(str(cell))


def matching_cells(cells: Iterable[Cell], placement: QueryPlacement, among: int) -> Iterator[Cell]:
    """Yield the cells that have the query's values and fulfil its ranges; frameworks must be named.

    `among` are the boxes that count for the attention setting; a cell that lacks the query's does not fulfil it. A
    query with neither torch nor transformers is about the cells that have a trainer that it names, and about no other.
    """
    domains = placement.universe.index.domains
    wanted = {name: domains[name].text(place) for name, place in placement.assignment.items()}
    cells = list(cells)
    trainers = find_wanted_trainers(placement.packages, cells)
    is_about_plain_cells = bool({"torch", "transformers"} & set(wanted))
    ranges = {demand.variable: demand.mask for demand in placement.demands if demand.variable not in wanted}
    for cell in cells:
        if cell.host.machine != placement.machine:
            continue
        if not (has_wanted_framework(cell, trainers) if cell.framework_pin else is_about_plain_cells):
            continue
        has = values_of_cell(cell)
        if any(name not in has and value != "none" for name, value in wanted.items() if name not in AXES):
            continue
        if any(has[name] != value for name, value in wanted.items() if name in has):
            continue
        known = {name: domains[name].index.get(has[name], 10_000) for name in ranges if name in has}
        if all(ranges[name] >> place & 1 for name, place in known.items()) and _has_attention(placement, has, among):
            yield cell


def _has_attention(placement: QueryPlacement, values: Mapping[str, str], among: int) -> bool:
    """Whether no rule speaks against the query's attention setting with these values; true when it states none."""
    index = placement.universe.index
    if "attn" not in placement.assignment:
        return True
    assignment = dict(placement.assignment)
    for name, value in values.items():
        domain = index.domains[name]
        if value in domain.index or value == "none":
            assignment[name] = domain.index.get(value, len(domain.values))
    return not index.find_broken(assignment, among & index.mentions["attn"])


def find_evidence(published: PublishedCells, placement: QueryPlacement, query: Query) -> tuple[tuple[str, ...], bool]:
    """Return the runs that trained with exactly this combination, and whether one of them was on a GPU."""
    packages = stated_packages(placement)
    if not published.proven or not {"torch", "transformers"} <= set(packages) or query.conditions.keys() - {MACHINE}:
        return (), False
    from knowngood.evidence.run_evidence import RunPlace

    evidence: list[str] = []
    proven = False
    for name in sorted(published.proven):
        try:
            cell = parse_cell(name)
        except UsageError:
            continue
        if _is_cell_of(cell, placement, packages, query):
            runs = [run for run in published.valid_runs(name) if _run_shows(run, packages, placement, query)]
            evidence += [f"{run.cell}: {run.where}, {run.when}, suite {run.suite[:12]}" for run in runs]
            proven = proven or any(run.where is RunPlace.CONTAINER_GPU for run in runs)
    return tuple(evidence), proven


def _is_cell_of(cell: Cell, placement: QueryPlacement, packages: Mapping[str, str], query: Query) -> bool:
    if cell.host.machine != placement.machine:
        return False
    has = packages_of_cell(cell)
    domains = placement.universe.index.domains
    if query.gpu is not None and (
        "gpu" not in placement.assignment or domains["gpu"].text(placement.assignment["gpu"]) != cell.gpu
    ):
        return False
    if "python" in placement.assignment and domains["python"].text(placement.assignment["python"]) != cell.python:
        return False
    bare = {name: version.partition("+")[0] for name, version in packages.items()}
    return all(bare.get(name, "none" if name.startswith("flash") else has[name]) == has[name] for name in has)


def _run_shows(run: Evidence, packages: Mapping[str, str], placement: QueryPlacement, query: Query) -> bool:
    from knowngood.evidence.run_evidence import RunPlace

    if run.where is RunPlace.BARE or not run.ok or "pass" not in run.outcomes.values():
        return False
    installed: Mapping[str, str] = run.report.get("environment", {}).get("distributions", {})
    for name, version in (*packages.items(), *placement.uncovered.items()):
        there = installed.get(name, "none").partition("+")[0]
        if there != version.partition("+")[0] and (version or there == "none"):
            return False
    return query.attn is None or run.outcomes.get(query.attn) == "pass"


def find_wanted_trainers(packages: Iterable[PackageSpec], cells: Iterable[Cell]) -> dict[str, PackageSpec]:
    """Return the packages of a query that are the framework of one of these cells, by name."""
    names = {cell.framework_pin[0] for cell in cells if cell.framework_pin}
    return {item.name: item for item in packages if item.name in names and item.specifier != NONE}


def has_wanted_framework(cell: Cell, wanted: Mapping[str, PackageSpec]) -> bool:
    """Return whether a cell's framework is one of the wanted trainers, in a release that the query takes."""
    if cell.framework_pin is None:
        return False
    name, version = cell.framework_pin
    return name in wanted and takes_release(wanted[name], version)


def takes_release(package: PackageSpec, version: str) -> bool:
    """Return whether a package of a query may be this release; one without a specifier may be any."""
    return not package.specifier or version_matches(package.specifier, version)


def find_lock_conflict(packages: Sequence[PackageSpec], locked: Mapping[str, str]) -> str | None:
    """Return which package a locked cell has in another release than a query wants; `None` when there is none.

    Args:
        packages: the packages of the query.
        locked: the packages of the cell's lock, with their versions; empty for a cell without a lock.
    """
    for package in packages:
        version = locked.get(package.name, "").partition("+")[0]
        if version and not (package.specifier != NONE and takes_release(package, version)):
            return f"its lock has {package.name} {version}, and not {package.text}"
    return None
