"""Everything that `check` and `pick` know, read from the data files: facts, rules, GPUs, cells, evidence.

The edge of the pure modules; only here files are read. Facts and rules are this program's own; matrix.yaml, its locks
and its evidence are the project's that it is called in, else its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from knowngood import gpus, project, resources
from knowngood.errors import MissingError
from knowngood.incidents import rules as incident_rules
from knowngood.solving import factbook, published, rules
from knowngood.solving import universe as universes
from knowngood.solving.query import Request

NOT_RULES = frozenset({"smoke.yaml"})
"""Files of `rules/` in another form (predictions of the smoke suite)."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The universe and the published cells."""

    universe: universes.Universe
    published: published.Published
    notes: tuple[str, ...] = ()
    _variants: dict[tuple[str, str], universes.Universe] = field(default_factory=dict)

    def for_request(self, request: Request) -> universes.Universe:
        """The universe, with the build of torch that a local version names where the facts are of another build."""
        for wanted in request.packages:
            if wanted.name == "torch" and wanted.local and wanted.version:
                return self._variant(wanted.version, wanted.local)
        return self.universe

    def _variant(self, version: str, local: str) -> universes.Universe:
        from knowngood.solving.variants import torch_variant

        known = self._variants.get((version, local))
        if known is None:
            book = torch_variant(self.universe.world.book, version, local)
            made = (
                self.universe
                if book is None
                else universes.build(book, self.universe.gpus, self.universe.written, self.universe.incidents)
            )
            known = self._variants[version, local] = made
        return known


def read(root: Path | None = None) -> Knowledge:
    """Read all of it; a facts file that is missing or damaged is left out, and said.

    `root` is a folder with other facts, rules and incidents than this program's own.
    """
    root = root or resources.root()
    book = factbook.read(root / "facts")
    if not book.packages:
        raise MissingError(f"there are no facts in {root / 'facts'}; `knowngood harvest` reads them")
    here = project.find()
    matrix = _yaml(here.root / project.MATRIX)
    cells = published.cells_of(matrix, book)
    locks = here.root / "docker" / "cells"
    told = incident_rules.read(root / "incidents")
    written = [*read_rules(root / "rules"), *told.rules]
    return Knowledge(
        universe=universes.build(book, gpus.from_sections(matrix["gpus"]), written, told.said_by),
        published=published.Published(
            cells=cells,
            aliases=matrix.get("aliases") or {},
            folder=here.evidence,
            locked=frozenset(path.parent.name for path in locks.glob("*/cell.json")),
        ),
        notes=book.left_out,
    )


def universe_of(packages: Collection[str], known: Sequence[rules.Rule], cards: gpus.Gpus) -> universes.Universe:
    """The universe of a few packages only, which is made faster; without evidence, by rules that were read already."""
    return universes.build(factbook.read(resources.root() / "facts").of(packages), cards, known)


def read_rules(folder: Path) -> list[rules.Rule]:
    """The rules of all files of a folder, in the order of their names."""
    found: list[rules.Rule] = []
    for path in sorted(folder.glob("*.yaml")):
        if path.name not in NOT_RULES:
            found += rules.parse(path.read_text(encoding="utf-8"), f"rules/{path.name}")
    return found


def _yaml(path: Path) -> dict[str, Any]:
    """matrix.yaml as plain data; a defect is told by the whole reading, with its line."""
    import yaml

    text = path.read_text(encoding="utf-8")
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))  # noqa: S506 - text and lists only
    except yaml.YAMLError:
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("gpus"), dict):
        _ = project.find().matrix
        raise MissingError(f"{path.name} has no GPUs")
    return data
