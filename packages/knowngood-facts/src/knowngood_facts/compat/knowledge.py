"""Everything that `check` and `pick` know, read from the data files: facts, rules, GPUs, cells, evidence.

Facts, rules and incidents are this program's own. matrix.yaml, its locks and its evidence are those of the project in
which the command runs, else this program's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.core import gpus, local_files
from knowngood.core.cell import Cell
from knowngood.core.errors import InputError, MissingError
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.core.image_record import IMAGE_RECORD_FILE
from knowngood.core.local_files import FACTS_FOLDER, INCIDENTS_FOLDER, RULES_FOLDER
from knowngood.core.yaml_cache import ParseYaml, YamlCache
from knowngood.evidence.model_runs import list_run_models
from knowngood.project import checkout
from knowngood.project.checkout import Project
from knowngood_facts.compat.factbook import Factbook, FactFolder, factbook_with_torch_build
from knowngood_facts.compat.matrix_cells import (
    PublishedCells,
    cells_from_matrix,
    packages_of_cell,
    waivers_from_matrix,
)
from knowngood_facts.compat.metadata_store import MetadataStore
from knowngood_facts.compat.query import Query
from knowngood_facts.compat.rule_files import load_incident_rules, load_rules
from knowngood_facts.compat.universe import (
    ALWAYS_INSTALLED,
    CELL_PACKAGES,
    Universe,
    build_universe,
    find_needed_packages,
)
from knowngood_facts.facts.atlas_lookup import list_read_releases
from knowngood_facts.facts.broken_use_table import (
    BrokenUseTable,
    read_broken_uses,
    refreshed_names_folder,
    releases_folder,
)
from knowngood_facts.facts.fact_store import BUILDS_FOLDER, load_fact_document
from knowngood_facts.facts.package_metadata import (
    list_metadata_packages,
    read_newest_metadata,
    read_package_metadata,
    read_snapshot_day,
    refreshed_folder,
)

if TYPE_CHECKING:
    from knowngood.core.matrix import Matrix
    from knowngood.evidence.cell_answer import CellError, CellWarning
    from knowngood.project.cell_answers import CellJudgements
    from knowngood.project.release_seal import ReleaseSeal
    from knowngood_facts.compat.model_types import ModelTypes
    from knowngood_facts.compat.rule import Rule


SIDE_PACKAGES = frozenset({"bitsandbytes", "numpy", "torchaudio"})
"""Packages whose facts count only for a query that names them: others require them, and no cell is chosen by them."""


@dataclass(frozen=True, kw_only=True)
class CompatKnowledge:
    """The universe and the published cells."""

    facts: FactFolder
    rules: Sequence[Rule]
    """The rules of `rules/` and of incidents."""
    build: Callable[[Factbook], Universe]
    """Returns the universe with these facts. It takes a good part of a command's time, so it is built when needed."""
    published: PublishedCells
    _universes: dict[object, Universe] = field(default_factory=dict)

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that have facts, without the side packages."""
        return tuple(name for name in self.facts.packages if name not in SIDE_PACKAGES)

    @property
    def universe(self) -> Universe:
        """What is known of all packages but the side packages."""
        return self._universe_of(self.packages)

    def for_query(self, query: Query, *, cells: bool = False, whole: bool = False) -> Universe:
        """Return the universe that a query needs, with the build of torch that it names (`2.11.0+cu126`).

        Args:
            query: the packages that it names, and those that they require, are in the universe.
            cells: cells are looked for, so the packages of a cell are in it too.
            whole: all packages are in it but side packages that it does not name, so that many queries share one.
        """
        named = {package.name for package in query.packages}
        builds = [
            (package.version, package.local)
            for package in query.packages
            if package.name == "torch" and package.version and package.local
        ]
        # Which conditions of use there are depends on all packages.
        whole = whole or bool(query.conditions)
        # A GPU or an attention setting is a question about the flash attention that goes with it.
        cells = cells or query.gpu is not None or query.attn is not None or any(item.extras for item in query.packages)
        scope = {*self.packages, *named} if whole else {*(CELL_PACKAGES if cells else ALWAYS_INSTALLED), *named}
        scope |= find_needed_packages(self.rules, scope)
        return self._universe_of(scope & set(self.facts.packages), builds[0] if builds else None)

    def _universe_of(self, packages: Collection[str], build: tuple[str, str] | None = None) -> Universe:
        """Return the universe of some packages and of what they require, and of a build of torch."""
        key = (frozenset(packages), build)
        if key not in self._universes:
            book = self.facts.read_book(packages, without=SIDE_PACKAGES)
            extended = factbook_with_torch_build(book, *build) if build else None
            if build and extended is None:  # nothing is known of such a build, so it is judged as its release
                self._universes[key] = self._universe_of(packages)
            else:
                self._universes[key] = self.build(extended or book)
        return self._universes[key]

    @property
    def seal_notes(self) -> tuple[str, ...]:
        """Which facts, rules and incidents are unsigned; nothing where the project names no key."""
        return self.published.seal.knowledge_notes if self.published.seal else ()


def judge_project_cells(project: Project, cells: Sequence[Cell]) -> CellJudgements:
    """Return what rules and facts say of cells of a project now; the extension `knowngood.judge_cells`."""
    from knowngood.project.cell_answers import CellJudgements, digest_matrix  # `check` judges no cells
    from knowngood_facts.compat.cell_judgement import judge_cell
    from knowngood_facts.compat.waivers import needless_waivers

    known = load_knowledge()
    matrix, universe = _sound_matrix(project), known.universe
    judgements, locked, notes = {}, project.tree.locked(), list(known.seal_notes)
    for cell in cells:
        entry = matrix.entries.get(str(cell)) if matrix else None
        glibc = matrix.bases[entry.base].glibc if matrix and entry else None
        judgements[str(cell)] = judgement = judge_cell(universe, cell, glibc)
        if matrix and cell.framework_pin and cell.host == DEFAULT_HOST and str(cell) not in locked:
            held = not any(item.override and item.when.matches(cell) for item in matrix.amendments)
            errors, unknown = _judge_framework(known, cell)
            judgements[str(cell)] = replace(
                judgement,
                errors=(*judgement.errors, *(errors if held else ())),
                warnings=(*judgement.warnings, *unknown),
            )
    needless = [
        f"matrix.yaml waives {finding} for cells that do not have that finding"
        for finding in needless_waivers(universe.index.space, universe.index.boxes, universe.waivers)
    ]
    return CellJudgements(cells=judgements, notes=(*notes, *needless), matrix=digest_matrix(project.root))


def _judge_framework(known: CompatKnowledge, cell: Cell) -> tuple[list[CellError], list[CellWarning]]:
    """Return what the framework of a cell without a lock contradicts there, and why nothing is known of it.

    What its metadata say would else be found by `lock` alone. A cell that has a lock was resolved.
    """
    from knowngood.evidence.cell_answer import CellError, CellWarning
    from knowngood_facts.compat.check_answer import check_query
    from knowngood_facts.compat.query import pinned_package

    pins = {name: version for name, version in packages_of_cell(cell).items() if version != "none"}
    packages = tuple(pinned_package(name, version) for name, version in pins.items())
    query = Query(gpu=cell.gpu, axes={"python": cell.python}, packages=packages)
    name = (cell.framework_pin or ("",))[0]
    findings = check_query(known.for_query(query), query, known.published, suggest=False).findings
    about = [item for item in findings if name in item.packages and not item.undecided]
    errors = [
        CellError(id=item.id, because=item.because, finding=item.document())
        for item in about
        if item.severity == "error"
    ]
    unknown = [CellWarning(id=item.id, because=item.because) for item in about if item.id == f"unknown:{name}"]
    return errors, unknown


def _sound_matrix(project: Project) -> Matrix | None:
    """Return the matrix of a project; `None` for one with defects, whose cells are judged without their bases."""
    try:
        return project.matrix
    except InputError:
        return None


def load_knowledge(root: Path | None = None, *, refreshed: bool = False) -> CompatKnowledge:
    """Read rules, incidents and matrix.yaml, and find the facts. A package without a file of facts is not covered.

    Args:
        root: a folder with other facts, rules and incidents than this program's own.
        refreshed: what this user read with `--refresh` counts too, so that the answers are of this machine.

    Raises:
        MissingError: there are no facts at all, or matrix.yaml has no GPUs.
        InputError: a file of facts, a rule, an incident or matrix.yaml has a defect.
    """
    root = root or local_files.data_folder()
    folder = root / FACTS_FOLDER / "metadata"
    read_by_user = refreshed_folder() if refreshed and refreshed_folder().is_dir() else None
    metadata = MetadataStore(
        read=lambda name: (
            read_newest_metadata(name, folder, read_by_user) if read_by_user else read_package_metadata(name, folder)
        ),
        names=lambda: list_metadata_packages(folder),
        day=read_snapshot_day(folder),
    )
    facts = FactFolder(path=root / FACTS_FOLDER, metadata=metadata)
    if not facts.packages:
        raise MissingError(f"there are no facts in {facts.path}; `knowngood harvest` reads them")
    project = checkout.find_project()
    text = checkout.read_matrix_text(project.root)
    # Where a key signs what decides, a file that nothing signs has no say.
    cache = YamlCache(used=not re.search(r"\bkey\b", text))
    matrix = _matrix_data(text, cache.parse)
    locks = project.root / "docker" / "cells"
    incidents = load_incident_rules(root / INCIDENTS_FOLDER, cache.parse)
    rules = [*load_rules(root / RULES_FOLDER, cache.parse), *incidents.rules]
    # Rules name GPUs that a project's matrix.yaml may not have.
    own = local_files.data_folder() / checkout.MATRIX_FILE
    is_own = own == project.root / checkout.MATRIX_FILE
    common = {} if is_own else _matrix_data(checkout.read_matrix_text(own.parent), cache.parse)["gpus"]
    cache.save()
    catalog = gpus.gpu_catalog_from_sections({**common, **matrix["gpus"]})
    try:
        cells = cells_from_matrix(matrix, facts.read_book(["torch"]))
    except (AttributeError, KeyError, TypeError):
        _ = project.matrix  # it raises `InputError` with the place of the defect
        raise
    waivers = waivers_from_matrix(matrix, cells)
    atlas = facts.path / "atlas"
    models = list_run_models(local_files.data_folder() / "evidence") | list_run_models(project.evidence)

    def read_builds(name: str) -> Mapping[str, Mapping[str, Any]]:
        path = facts.path / BUILDS_FOLDER / f"{name}.json"
        releases = load_fact_document(path)["releases"] if path.exists() else {}
        return {version: entry["facts"] for version, entry in releases.items()}

    own_names = releases_folder(refreshed_names_folder()) if refreshed else None

    def read_uses(name: str) -> BrokenUseTable | None:
        if "==" in name:
            return read_broken_uses(name, own_names) if own_names is not None else None
        return read_broken_uses(name, atlas)

    def build(book: Factbook) -> Universe:
        universe = build_universe(book, catalog, rules, waivers, read_uses)
        return replace(
            universe,
            incidents=incidents.incidents_of_rule,
            read_releases=lambda name: list_read_releases(name, atlas),
            models=models,
            model_types=partial(_model_types, atlas),
            read_builds=read_builds,
        )

    return CompatKnowledge(
        facts=facts,
        rules=rules,
        build=build,
        published=PublishedCells(
            cells=tuple(cell for cell, retirement in cells.items() if retirement is None),
            retired={cell: retirement for cell, retirement in cells.items() if retirement},
            aliases=matrix.get("aliases") or {},
            folder=project.evidence,
            seal=_load_seal(project.root, matrix),
            read_lock=lru_cache(partial(_read_lock, project.root)),
            locked=frozenset(path.parent.name for path in locks.glob("*/cell.json")),
            recorded=frozenset(path.parent.name for path in locks.glob(f"*/{IMAGE_RECORD_FILE}")),
        ),
    )


@lru_cache
def _model_types(atlas: Path) -> ModelTypes | None:
    """Return which releases of transformers have which models; `None` where there is no atlas of it."""
    from knowngood_facts.compat.model_types import ModelTypes  # only a query with a model asks for it
    from knowngood_facts.facts.atlas_lookup import open_atlas

    lookup = open_atlas("transformers", atlas)
    return ModelTypes(lookup) if lookup is not None else None


def _read_lock(root: Path, cell: Cell) -> dict[str, str]:
    """Return the packages of a cell's lock, with their versions; none for a cell without one."""
    from knowngood.lock.lock_tree import LockTree  # only a query of packages without facts asks for it

    lock = LockTree(root).load(cell)
    return {item.name: item.version for item in lock.distributions} if lock else {}


def _load_seal(root: Path, matrix: dict[str, Any]) -> ReleaseSeal | None:
    """Return the seal of a project, `None` where matrix.yaml names no key."""
    section = matrix.get("publish")
    names = section.get("key") if isinstance(section, dict) else None
    if not names:
        return None
    from knowngood.project.release_seal import load_release_seal

    return load_release_seal(root, [str(name) for name in names] if isinstance(names, list) else [str(names)])


def _matrix_data(text: str, parse: ParseYaml) -> dict[str, Any]:
    """Return matrix.yaml as plain data; at a defect, `knowngood.core.matrix` reads it again and raises `InputError`."""
    data = parse(text, checkout.MATRIX_FILE)
    if not isinstance(data, dict) or not isinstance(data.get("gpus"), dict):
        _ = checkout.find_project().matrix
        raise MissingError(f"{checkout.MATRIX_FILE} has no GPUs")
    return data
