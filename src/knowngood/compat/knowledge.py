"""Everything that `check` and `pick` know, read from the data files: facts, rules, GPUs, cells, evidence.

Facts, rules and incidents are this program's own. matrix.yaml, its locks and its evidence are those of the project in
which the command runs, else this program's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from knowngood.compat.factbook import factbook_with_torch_build, read_factbook
from knowngood.compat.matrix_cells import PublishedCells, cells_from_matrix
from knowngood.compat.query import Query
from knowngood.compat.rule_files import load_incident_rules, load_rules
from knowngood.compat.universe import Universe, build_universe
from knowngood.core import gpus, local_files
from knowngood.core.errors import MissingError
from knowngood.project import checkout


@dataclass(frozen=True, kw_only=True)
class CompatKnowledge:
    """The universe, the published cells, and notes on facts that could not be read."""

    universe: Universe
    published: PublishedCells
    notes: tuple[str, ...] = ()
    _torch_builds: dict[tuple[str, str], Universe] = field(default_factory=dict)

    def for_query(self, query: Query) -> Universe:
        """Return the universe, extended by the build of torch that the query names (`2.11.0+cu126`), if it does."""
        for package in query.packages:
            if package.name == "torch" and package.local and package.version:
                key = (package.version, package.local)
                if key not in self._torch_builds:
                    self._torch_builds[key] = self._with_torch_build(*key)
                return self._torch_builds[key]
        return self.universe

    def _with_torch_build(self, version: str, local: str) -> Universe:
        universe = self.universe
        book = factbook_with_torch_build(universe.space.book, version, local)
        if book is None:
            return universe
        return build_universe(book, universe.gpus, universe.written_rules, universe.incidents)


def load_knowledge(root: Path | None = None) -> CompatKnowledge:
    """Read everything; a facts file that is missing or damaged is left out and named in the notes.

    `root` is a folder with other facts, rules and incidents than this program's own.

    Raises:
        MissingError: there are no facts at all, or matrix.yaml has no GPUs.
        InputError: a rule, an incident or matrix.yaml has a defect.
    """
    root = root or local_files.data_folder()
    book = read_factbook(root / "facts")
    if not book.packages:
        raise MissingError(f"there are no facts in {root / 'facts'}; `knowngood harvest` reads them")
    project = checkout.find_project()
    matrix = _read_matrix_data(project.root / checkout.MATRIX_FILE)
    locks = project.root / "docker" / "cells"
    incidents = load_incident_rules(root / "incidents")
    rules = [*load_rules(root / "rules"), *incidents.rules]
    catalog = gpus.gpu_catalog_from_sections(matrix["gpus"])
    return CompatKnowledge(
        universe=build_universe(book, catalog, rules, incidents.incidents_of_rule),
        published=PublishedCells(
            cells=cells_from_matrix(matrix, book),
            aliases=matrix.get("aliases") or {},
            folder=project.evidence,
            locked=frozenset(path.parent.name for path in locks.glob("*/cell.json")),
        ),
        notes=book.left_out,
    )


def _read_matrix_data(path: Path) -> dict[str, Any]:
    """Read matrix.yaml as plain data; for a defect, `knowngood.core.matrix` reads it again and raises `InputError`."""
    import yaml

    text = path.read_text(encoding="utf-8")
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))  # noqa: S506 - text and lists only
    except yaml.YAMLError:
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("gpus"), dict):
        _ = checkout.find_project().matrix
        raise MissingError(f"{path.name} has no GPUs")
    return data
