"""Makes all files of the site out of the catalog, the pages, and the answers for each kind of machine."""

from __future__ import annotations

import base64
import gc
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import knowngood
import knowngood_facts
import knowngood_pages
from knowngood.core import local_files
from knowngood.core.attention import ATTENTION
from knowngood.core.cell import parse_cell
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.evidence.cell_standing import CellStanding
from knowngood.lock import lock_exports
from knowngood.project.release_seal import KNOWLEDGE_FOLDERS
from knowngood.reports import nightly_folder, nightly_report
from knowngood_facts.compat import knowledge
from knowngood_pages import catalog_collection, site_incidents, site_pages, site_questions, site_verdicts
from knowngood_pages.run_commands import run_command_templates
from knowngood_pages.site_cards import MARK_MEANINGS, SETTING_NAMES, UNBUILT_WORDS, CardTable
from knowngood_pages.trainer_page_files import render_project_trainers

if TYPE_CHECKING:
    from markupsafe import Markup

    from knowngood.core.gpus import GpuMachine
    from knowngood.project.checkout import Project
    from knowngood_facts.compat.incident import Incident
    from knowngood_facts.compat.matrix_cells import PublishedCells
    from knowngood_pages.catalog import Catalog, CatalogCell


_NIGHTS = 14
"""How many reports of nights the site shows."""


@dataclass(frozen=True, kw_only=True)
class BuiltSite:
    """The files of a site by name, and the catalog that they show."""

    files: dict[str, str | bytes]
    catalog: Catalog


def build_site(
    here: Project, evidence: Path, incidents: Sequence[Incident], places: site_pages.SitePlaces
) -> BuiltSite:
    """Make all files of the site."""
    known = _read_knowledge()
    standings = catalog_collection.read_cell_standings(evidence, here.seal)
    templates = site_templates_folder(here)
    cell_standings = {name: standing for name, (standing, _) in standings.items()}
    with computed_tables(known, cell_standings) as answers:
        # The pages are made here while the worker processes compute the tables.
        catalog = catalog_collection.collect_catalog(here, evidence, standings, incidents, known, places.repository)
        labels = {(item.sm, str(item.host)): item.label for item in known.universe.gpus.machines}
        bodies = site_incidents.render_incident_bodies(incidents)
        files: dict[str, str | bytes] = dict(places.program)
        files |= site_pages.render_site(catalog, templates, bodies, places, labels)
        trainers = render_project_trainers(here, replace(known.published, folder=evidence))
        pages = {
            name: (site_incidents.find_page_title(text), site_incidents.render_page_body(text))
            for name, text in trainers.items()
        }
        files |= site_pages.render_trainer_site(catalog, templates, pages)
        files["data/find.js"] = render_page_script("find", _find_page_data(known, catalog))
        files["nights.html"] = site_pages.render_nights_page(catalog, templates, _render_nights(evidence))
        files |= _read_proofs(here, evidence, catalog)
        cells = [cell for cell in catalog.cells if cell.in_matrix]
        for name, table in answers():
            own = (cell for cell in cells if machine_name(known, cell) == name)
            cards = CardTable().document(own, cells_of_answers(table))
            files[f"data/{name}.js"] = render_page_script(name, compress_table(table | cards))
    return BuiltSite(files=files, catalog=catalog)


def _render_nights(evidence: Path) -> Markup:
    """Return the newest reports of nights as HTML, the newest first."""
    reports, _ = nightly_folder.load_reports(evidence / "nights")
    return site_incidents.render_page_body(
        "\n".join(f"#{nightly_report.render_report_page(report)}" for report in reports[: -_NIGHTS - 1 : -1])
    )


def _read_proofs(here: Project, evidence: Path, catalog: Catalog) -> dict[str, str | bytes]:
    """Return the files that pages rest on: the licence, the lock of each cell, and the runs that it names."""
    files: dict[str, str | bytes] = {}
    if (licence := here.root / "LICENSE").is_file():
        files["LICENSE.txt"] = licence.read_bytes()
    for cell in catalog.cells:
        if cell.in_matrix and (lock := here.tree.load(parse_cell(cell.id))):
            files[f"cells/{cell.id}.txt"] = lock_exports.render_requirements(lock)
        named = {run.file for run in cell.runs} | ({cell.evidence} if cell.evidence else set())
        files |= {f"evidence/{name}": (evidence / name).read_bytes() for name in named}
    return files


def machine_name(known: knowledge.CompatKnowledge, cell: CatalogCell) -> str:
    """Return the name of the kind of machine that a cell of the catalog is for."""
    axes = cell.axes["gpu"], cell.axes.get("host", DEFAULT_HOST)
    return next(item.name for item in known.universe.gpus.machines if (item.sm, item.host) == axes)


def site_templates_folder(here: Project) -> Path:
    """Return the folder of the site's templates: the project's own, or those of this program."""
    own = here.templates / "site"
    return own if own.is_dir() else local_files.data_folder() / "templates/site"


def cells_of_answers(table: Mapping[str, Any]) -> list[str]:
    """Return the ids of the cells that the answers in a GPU's table name."""
    return list(dict.fromkeys(choice["id"] for answer in table["answers"] for choice in answer.get("cells", [])))


def _find_page_data(known: knowledge.CompatKnowledge, catalog: Catalog) -> dict[str, Any]:
    """Return the choices of the form on the first page, and the texts that cards of all GPUs have in common."""
    gpus = known.universe.gpus
    cells = [cell for cell in catalog.cells if cell.in_matrix and not cell.retired]
    covered = {machine_name(known, cell) for cell in cells}
    first = next((cell for cell in cells if "default" in cell.aliases), cells[0] if cells else None)
    return {
        "gpu_names": gpus.name_table.matching_data(),
        "gpus": [
            {
                "name": item.name,
                "sm": item.sm,
                "host": str(item.host),
                "family": gpus.family(item.sm),
                "label": item.label,
                "cards": list(item.cards),
                "covered": item.name in covered,
            }
            for item in reversed(gpus.machines)
        ],
        "start": machine_name(known, first) if first else gpus.names[0],
        "attention": [[setting, SETTING_NAMES[setting]] for setting in ATTENTION],
        "frameworks": site_verdicts.list_frameworks(known.published),
        "releases": site_verdicts.list_releases(known.published),
        "drivers": site_verdicts.list_drivers(known.universe),
        "minimum": site_verdicts.list_minimum_drivers(known.universe),
        "commands": run_command_templates(catalog.build_time),
        "unbuilt": UNBUILT_WORDS,
        "marks": {mark: [site_pages.STATE_GLYPHS[mark], text] for mark, text in site_pages.STATE_MEANINGS.items()},
        "explanations": dict(MARK_MEANINGS),
        "titles": {incident.id: incident.title for incident in catalog.incidents if incident.id in _shown(catalog)},
    }


def _shown(catalog: Catalog) -> set[str]:
    """Return the incidents that checks of cells show."""
    settings = (item for cell in catalog.cells for item in cell.attention.values())
    return {defect.incident for item in settings for defect in item.defects if defect.incident}


@contextmanager
def computed_tables(
    known: knowledge.CompatKnowledge, standings: Mapping[str, CellStanding]
) -> Iterator[Callable[[], Iterator[tuple[str, dict[str, Any]]]]]:
    """Begin to compute the table of answers for each kind of machine, in worker processes.

    Yields a function that waits for them. A table is taken from the cache when nothing that decides it has changed.
    """
    names = [machine.name for machine in known.universe.gpus.machines]
    common = _common_key(known)
    keys = {
        machine.name: _machine_key(common, machine, known.published, standings)
        for machine in known.universe.gpus.machines
    }
    tables = {name: cached for name in names if (cached := _read_cached(keys[name])) is not None}
    missing = [name for name in names if name not in tables]
    with _process_pool(len(missing)) as pool:
        locked = known.published.locked
        # Those of the newest GPUs take longest, and therefore begin.
        running = {name: pool.submit(_compute_table, locked, standings, name) for name in reversed(missing)}

        def answers() -> Iterator[tuple[str, dict[str, Any]]]:
            for name in names:
                if name in running:
                    tables[name] = running[name].result()
                    write_atomically(_cache_path(keys[name]), json.dumps(tables[name]))
                yield name, tables[name]

        yield answers


def _process_pool(limit: int) -> ProcessPoolExecutor:
    """Return a pool of forked processes: one a core, at most `limit`.

    They are forked so that they share what this process has read; it must have no threads, since a thread could hold a
    lock at the moment of the fork. The processes live for seconds and make few reference cycles; collecting those took
    a sixth of their time, so garbage collection is off in them.
    """
    count = max(min(os.cpu_count() or 1, limit), 1)
    return ProcessPoolExecutor(count, mp_context=get_context("fork"), initializer=gc.disable)


@cache
def _read_knowledge() -> knowledge.CompatKnowledge:
    """Load the knowledge once; worker processes that are forked afterwards have it without loading it."""
    return knowledge.load_knowledge()


def _compute_table(locked: frozenset[str], standings: Mapping[str, CellStanding], name: str) -> dict[str, Any]:
    known = _read_knowledge()
    published = site_questions.GpuCells(
        cells=known.published.cells,
        retired=known.published.retired,
        locked=locked,
        recorded=known.published.recorded,
        machine=next(machine for machine in known.universe.gpus.machines if machine.name == name),
        known_standings=standings,
    )
    table = site_verdicts.GpuAnswerTable(universe=known.universe, published=published)
    releases, pins = site_verdicts.list_releases(published), site_verdicts.list_frameworks(published)
    return table.document(list(ATTENTION), releases, pins)


_PROGRAM = tuple(
    Path(str(module.__file__)).resolve().parent for module in (knowngood, knowngood_facts, knowngood_pages)
)
"""The packages whose code decides the answers."""


def _common_key(known: knowledge.CompatKnowledge) -> str:
    """Return a hash of what decides the answers for every GPU: the data files, the cards and the program."""
    root = local_files.data_folder()
    digest = hashlib.sha256()
    for base, paths in (
        (root, [path for name in KNOWLEDGE_FOLDERS for path in (root / name).rglob("*")]),
        *((package, package.rglob("*.py")) for package in _PROGRAM),
    ):
        for path in sorted(path for path in paths if path.is_file()):
            digest.update(f"{path.relative_to(base)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    digest.update(repr(known.universe.gpus).encode())
    return digest.hexdigest()


def _machine_key(
    common: str, machine: GpuMachine, published: PublishedCells, standings: Mapping[str, CellStanding]
) -> str:
    """Return the cache key of a table: with its cells in order, what is known of them, Pythons and frameworks."""
    cells, nothing = published.cells, CellStanding()
    axes = machine.sm, machine.host
    lines = []
    for name in (str(cell) for cell in cells if (cell.gpu, cell.host) == axes):
        standing = standings.get(name, nothing)
        tier = standing.tier(locked=name in published.locked, recorded=name in published.recorded)
        lines.append(f"{name} {tier} {standing.settings}")
    pythons = list(dict.fromkeys(cell.python for cell in cells))
    pins = sorted({(cell.framework, cell.transformers) for cell in cells if cell.framework_pin})
    retired = [str(cell) for cell in published.retired if (cell.gpu, cell.host) == axes]
    return hashlib.sha256(repr((common, machine.name, lines, pythons, pins, retired)).encode()).hexdigest()


def _cache_path(key: str) -> Path:
    return cache_folder() / "site" / f"{key[:32]}.json"


def _read_cached(key: str) -> dict[str, Any] | None:
    try:
        table: dict[str, Any] = json.loads(_cache_path(key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return table


def compress_table(table: Mapping[str, Any]) -> str:
    """Return a table as JSON, compressed by gzip and written in base64; the page's script unpacks it.

    The answers of a GPU repeat the same ids and words: 330 KB are 40 KB so, also for a page that is opened as a file.
    """
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


_SCRIPT_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def render_page_script(name: str, value: Any) -> str:
    """Return a script that sets `knowngood.NAME`, in which no text can end the script element or begin another.

    A page that is opened as a file can load a script; it could not request JSON, which `file://` refuses.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_SCRIPT_ESCAPES)
    return f"(globalThis.knowngood ??= {{}})[{json.dumps(name)}]={text};\n"
