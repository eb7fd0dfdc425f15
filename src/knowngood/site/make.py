"""Makes the files of a site: the one place where its parts come together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood import resources, workers
from knowngood.atomic import write_text
from knowngood.paths import cache_dir
from knowngood.site import asking, collect, markdown, pages, script, signatures, verdicts
from knowngood.solving import knowledge
from knowngood.solving.universe import ATTENTION

if TYPE_CHECKING:
    from knowngood.cell import Cell
    from knowngood.incidents.model import Incident
    from knowngood.project import Project
    from knowngood.site.catalog import Catalog


@dataclass(frozen=True, kw_only=True)
class Made:
    """The files by name, and what they show."""

    files: dict[str, str]
    catalog: Catalog


def make(
    here: Project,
    evidence: Path,
    incidents: Sequence[Incident],
    repository: str | None,
    runs_at: str | None = None,
) -> Made:
    """All files of the site."""
    known = _known()
    found = collect.read(evidence)
    templates = here.templates / "site" if (here.templates / "site").is_dir() else resources.root() / "templates/site"
    with tables(known, collect.tiers(here, found)) as answers:
        # The pages are made while the others answer the questions.
        catalog = collect.collect(here, evidence, found, incidents, known.universe.world.book, repository)
        files = pages.files(catalog, templates, markdown.incidents(incidents), runs_at)
        files["data/signatures.js"] = script.data("signatures", signatures.document(incidents))
        files["data/find.js"] = script.data("find", _find(known, catalog))
        for gpu, table in answers():
            files[f"data/{gpu}.js"] = script.data(gpu, table)
    return Made(files=files, catalog=catalog)


def _find(known: knowledge.Knowledge, catalog: Catalog) -> dict[str, Any]:
    """What the questions can be, and what the page shows of each cell."""
    gpus = known.universe.gpus
    return {
        "gpus": [{"sm": sm, "family": gpus.family(sm), "cards": list(gpus.sections[sm][1])} for sm in gpus.names],
        "attention": list(ATTENTION),
        "frameworks": verdicts.frameworks(known.published),
        "drivers": verdicts.drivers(known.universe),
        "minimum": verdicts.minimum(known.universe),
        "cells": {
            cell.id: {
                "tier": cell.tier,
                "reference": cell.reference,
                "driver": cell.driver_minimum,
                "transformers": cell.axes["transformers"],
                "framework": cell.axes.get("framework", ""),
            }
            for cell in catalog.cells
            if cell.in_matrix
        },
    }


@contextmanager
def tables(
    known: knowledge.Knowledge, tiers: Mapping[str, str]
) -> Iterator[Callable[[], Iterator[tuple[str, dict[str, Any]]]]]:
    """Begins with the verdicts for each GPU, which are there when called for; kept ones, where nothing that decides
    them has changed.
    """
    names = known.universe.gpus.names
    common = _key(known)
    keys = {name: _key_of(common, name, known.published.cells, tiers) for name in names}
    found = {name: kept for name in names if (kept := _kept(keys[name])) is not None}
    missing = [name for name in names if name not in found]
    # Neighbours have much in common; the newest, of which there is most to say, begin.
    pairs = [missing[place : place + 2] for place in range(0, len(missing), 2)][::-1]
    with workers.pool(len(pairs)) as pool:
        begun = {name: task for pair in pairs for task in [pool.submit(_tables, tiers, pair)] for name in pair}

        def answers() -> Iterator[tuple[str, dict[str, Any]]]:
            for name in names:
                if name in begun:
                    found[name] = begun[name].result()[name]
                    write_text(_place(keys[name]), json.dumps(found[name]))
                yield name, found[name]

        yield answers


@cache
def _known() -> knowledge.Knowledge:
    """Once, before the workers begin, who then have it too."""
    return knowledge.read()


def _tables(tiers: Mapping[str, str], gpus: Iterable[str]) -> dict[str, Any]:
    known = _known()
    cells, settings = known.published.cells, list(ATTENTION)
    found = {}
    for gpu in gpus:
        table = verdicts.Table(universe=known.universe, published=asking.Narrowed(cells=cells, gpu=gpu, tiers=tiers))
        found[gpu] = table.document(settings, verdicts.minors(known.universe), verdicts.frameworks(known.published))
    return found


def _key(known: knowledge.Knowledge) -> str:
    """Of what `pick` reads for every GPU: the data files, the cards and the program."""
    root = resources.root()
    program = Path(__file__).resolve().parent.parent
    made = hashlib.sha256()
    for base, paths in (
        (root, [path for name in ("facts", "rules", "incidents") for path in (root / name).rglob("*")]),
        (program, [*program.glob("*.py"), *program.glob("site/*.py")]),
    ):
        for path in sorted(path for path in paths if path.is_file()):
            made.update(f"{path.relative_to(base)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    made.update(repr(known.universe.gpus.sections).encode())
    return made.hexdigest()


def _key_of(common: str, gpu: str, cells: Iterable[Cell], tiers: Mapping[str, str]) -> str:
    """Besides of the GPU, its cells in their order with what is proven, and what else decides: Pythons, frameworks."""
    lines = [f"{cell} {tiers.get(str(cell), '')}" for cell in cells if cell.gpu == gpu]
    pythons = list(dict.fromkeys(cell.python for cell in cells))
    pins = sorted({(cell.framework, cell.transformers) for cell in cells if cell.framework_pin})
    return hashlib.sha256(repr((common, gpu, lines, pythons, pins)).encode()).hexdigest()


def _place(key: str) -> Path:
    return cache_dir() / "site" / f"{key[:32]}.json"


def _kept(key: str) -> dict[str, Any] | None:
    try:
        kept: dict[str, Any] = json.loads(_place(key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return kept
