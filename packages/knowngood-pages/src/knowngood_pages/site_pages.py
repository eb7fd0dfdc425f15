"""Renders the pages of the site from a catalog. Pure, apart from reading the templates.

A matrix that is too large for one page is split: by GPU, then by torch, then into parts of equal length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from knowngood.core.attention import ATTENTION
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.evidence.cell_answer import explain_tier
from knowngood.evidence.run_evidence import Tier
from knowngood_pages import catalog as catalogs
from knowngood_pages.site_cards import MARK_MEANINGS, SETTING_NAMES, CellCard

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from knowngood_pages.catalog import Catalog, CatalogCell

OUTCOME_GLYPHS = {"pass": "✓", "fail": "✗", "refused": "⊘", "not-run": "·"}
"""The sign of each outcome of a check."""
STATE_GLYPHS = {
    "seen-on-gpu": "✓",
    "seen-on-cpu": "○",
    "seen-emulated": "◌",
    "predicted": "?",
    "refused": "⊘",
    "predicted-refusal": "⊘?",
    "wrong": "✗",
    "not-run": "·",
}
"""The sign of each state of an attention setting in a cell."""
STATE_MEANINGS = {
    "seen-on-gpu": "seen training on its GPU",
    "seen-on-cpu": "on a CPU only, unseen on a GPU",
    "seen-emulated": "on an emulated CPU only, unseen on its own CPU and on a GPU",
    "predicted": "predicted to train, unseen",
    "refused": "refused on its GPU",
    "predicted-refusal": "predicted to be refused",
    "wrong": "wrong or broken",
    "not-run": "not in the image",
}
TIER_MEANINGS = {
    Tier.TRAINS_ON_GPU: "seen on a GPU",
    Tier.TRAINS_ON_CPU: "unseen on a GPU",
    Tier.TRAINS_EMULATED: "emulated only",
    Tier.BUILT: "built, not seen training",
    Tier.RESOLVED: "locked, not built",
    Tier.NONE: "not locked",
}
"""Each tier in two or three words; `cell_answer.describe_tier` has the sentence."""
TIER_TEXTS = {
    Tier.TRAINS_ON_GPU: "its image was seen training on the GPU that it is for, with each setting's own kernels",
    Tier.TRAINS_ON_CPU: "its image was seen training on a CPU; no run of it had the GPU that it is for",
    Tier.TRAINS_EMULATED: (
        "its image was seen training on an emulated CPU; no run had a CPU of its own host, or the GPU that it is for"
    ),
    Tier.BUILT: "an image was built and is recorded, but no run of the tests saw it training",
    Tier.RESOLVED: "its packages are pinned by hash; nobody has built it",
    Tier.NONE: "nothing is recorded of an image; runs in other environments are shown all the same",
}
"""Each tier in a sentence for people who have not read the documentation."""


@dataclass(frozen=True, kw_only=True)
class SitePlaces:
    """Where a site finds what is not in its catalog."""

    repository: str | None = None
    """Where the images are published; `None`: they are local."""
    source: str = ""
    """Where people read the repository; empty where it has no such place."""
    licence: bool = False
    """Whether the licence is a file of the site."""
    made_from: str = ""
    """The commit that the pages were made from, and its day; empty where there is none."""
    program: Mapping[str, bytes] = field(default_factory=dict)
    """The files with which a page diagnoses logs, by their names on the site."""


def render_site(
    catalog: Catalog,
    templates: Path,
    incidents: Mapping[str, str],
    places: SitePlaces | None = None,
    labels: Mapping[tuple[str, str], str] | None = None,
) -> dict[str, str]:
    """Return the text of every file of the site that follows from the catalog, by its name.

    `incidents` has the body of each incident's page as HTML, `labels` the cards of each architecture and host
    in a few words.
    """
    places = places or SitePlaces()
    size = sum(map(len, places.program.values()))
    environment = site_templates(templates)
    cards = {
        cell.id: CellCard(
            cell=cell,
            gpu=(labels or {}).get((cell.axes["gpu"], cell.axes.get("host", DEFAULT_HOST)), cell.axes["gpu"]),
            build_time=catalog.build_time,
        )
        for cell in catalog.cells
    }
    environment.globals.update(
        cards=cards,
        names=SETTING_NAMES,
        explanations=MARK_MEANINGS,
        titles={incident.id: incident.title for incident in catalog.incidents},
        glyphs=STATE_GLYPHS,
        meanings=STATE_MEANINGS,
        tiers=TIER_MEANINGS,
        explain_tier=explain_tier,
        tier_texts=TIER_TEXTS,
        settings=list(ATTENTION),
        greatest=greatest_figures,
        places=places,
    )
    matrix_pages = split_matrix(catalog.cells)
    matrix: dict[str, Any] = {"sheet": None, "sheets": [], "left": [], "cells": catalog.cells, "figures": []}
    if not matrix_pages:
        matrix["figures"] = compare_figures(catalog.cells)
    pages: dict[str, tuple[str, dict[str, Any]]] = {
        "index.html": ("index.html.j2", {}),
        "matrix.html": ("matrix.html.j2", matrix | {"sheets": matrix_pages, "left": catalog.left_out}),
        "compatibility.html": ("compatibility.html.j2", {}),
        "sizes.html": ("sizes.html.j2", {}),
        "diagnose.html": ("diagnose.html.j2", {"program": math.ceil(size / 1e6)}),
        "incidents/index.html": ("incidents.html.j2", {"kinds": _incidents_by_kind(catalog)}),
    }
    for part in matrix_pages:
        more = {"sheet": part, "cells": part.cells, "figures": compare_figures(part.cells)}
        pages[f"matrix/{part.name}.html"] = "matrix.html.j2", matrix | more
    files = {name: _render_page(environment, name, template, catalog, more) for name, (template, more) in pages.items()}
    for cell in catalog.cells:
        name = f"cells/{cell.id}.html"
        more = {
            "cell": cell,
            "history": run_history(cell),
            "layers": [it for it in catalog.layers if cell.id in it.cells],
        }
        files[name] = _render_page(environment, name, "cell.html.j2", catalog, more)
    titles = {incident.id: incident.title for incident in catalog.incidents}
    for incident, html in incidents.items():
        name = f"incidents/{incident}.html"
        files[name] = _render_page(
            environment, name, "incident.html.j2", catalog, {"title": titles[incident], "html": html}
        )
    static = sorted(path for pattern in ("*.css", "*.js") for path in (templates / "static").glob(pattern))
    files |= {f"static/{path.name}": path.read_text(encoding="utf-8") for path in static}
    return files | {"catalog.json": catalog.render_json(), "catalog.schema.json": catalogs.render_catalog_schema()}


def render_nights_page(catalog: Catalog, templates: Path, nights: Markup) -> str:
    """Return the page of the last nights, whose reports are given as HTML."""
    return _render_page(site_templates(templates), "nights.html", "nights.html.j2", catalog, {"nights": nights})


def render_trainer_site(catalog: Catalog, templates: Path, pages: Mapping[str, tuple[str, Markup]]) -> dict[str, str]:
    """Return the pages of trainers by file name; `pages` has the title and the body of each, by its name in docs/."""
    environment, files = site_templates(templates), dict[str, str]()
    for file, (title, html) in pages.items():
        name = f"trainers/{'index' if file == 'README.md' else file.removesuffix('.md')}.html"
        files[name] = _render_page(environment, name, "incident.html.j2", catalog, {"title": title, "html": html})
    return files


def _render_page(environment: Environment, name: str, template: str, catalog: Catalog, more: Mapping[str, Any]) -> str:
    root = "../" * name.count("/")
    return environment.get_template(template).render(catalog=catalog, root=root, page=name, **more)


@cache
def site_templates(templates: Path) -> Environment:
    """Return the Jinja environment of the templates in a folder; every value that is filled in is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["places"] = SitePlaces()
    environment.filters["gigabytes"] = lambda size: f"{size / 1e9:.2f} GB"
    environment.filters["megabytes"] = lambda size: f"{size / 1e6:,.1f} MB"
    return environment


@dataclass(frozen=True, kw_only=True)
class FigureTable:
    """A figure of many cells, to compare their attention settings."""

    title: str
    kind: str
    """The class of its bars: `time` or `memory`."""
    settings: Sequence[str]
    """The settings that any of the cells has a figure for."""
    rows: Sequence[tuple[CatalogCell, Mapping[str, float]]]

    @property
    def most(self) -> float:
        """The figure that has a full bar: three times the median; a few settings need far more than all others."""
        return 3 * median(value for _, values in self.rows for value in values.values())


def compare_figures(cells: Sequence[CatalogCell]) -> list[FigureTable]:
    """Return the time and the memory of a step for all settings of all cells; nothing when no cell has figures."""
    kinds: dict[str, tuple[str, Callable[[catalogs.CatalogAttention], float | None]]] = {
        "time": ("Time of a step, in milliseconds", lambda item: item.step_ms),
        "memory": ("Peak memory of a step, in GB", lambda item: item.peak_bytes and item.peak_bytes / 1e9),
    }
    tables = []
    for kind, (title, figure) in kinds.items():
        rows = [(cell, {name: it for name, item in cell.attention.items() if (it := figure(item))}) for cell in cells]
        rows = [(cell, values) for cell, values in rows if values]
        settings = [name for name in ATTENTION if any(name in values for _, values in rows)]
        tables.append(FigureTable(title=title, kind=kind, settings=settings, rows=rows))
    return [table for table in tables if table.rows]


def greatest_figures(cell: CatalogCell) -> dict[str, float]:
    """Return the greatest figures of a cell, which have the longest bars."""
    every = [item for item in cell.attention.values() if item.step_ms]
    return {
        "ms": max((item.step_ms or 0 for item in every), default=1),
        "bytes": max((item.peak_bytes or 0 for item in every), default=1),
    }


def _incidents_by_kind(catalog: Catalog) -> list[tuple[str, list[catalogs.CatalogIncident]]]:
    kinds: dict[str, list[catalogs.CatalogIncident]] = {}
    for incident in catalog.incidents:
        kinds.setdefault(incident.kind, []).append(incident)
    return sorted(kinds.items())


def run_history(cell: CatalogCell) -> Sequence[Mapping[str, Any]]:
    """Return the runs of a cell, newest first, each with the changes since the last run in the same kind of place."""
    history: list[dict[str, Any]] = []
    last: dict[str, catalogs.CatalogRun] = {}
    for run in cell.runs:
        before = last.get(run.where)
        changed = []
        if before and before.ok != run.ok:
            changed.append("turned green" if run.ok else "turned red")
        if before and before.image != run.image:
            changed.append("another image")
        if before and before.suite != run.suite:
            changed.append("another suite")
        last[run.where] = run
        history.append({"run": run, "changed": changed})
    return history[::-1]


CELLS_PER_PAGE = 200
"""The most cells on a page. A page of 500 cells had 3 MB, and 60,000 nodes for a screen reader."""


@dataclass(frozen=True, kw_only=True)
class MatrixPage:
    """One page of a matrix that is split into several."""

    name: str
    title: str
    cells: Sequence[CatalogCell]

    def tiers(self) -> dict[str, int]:
        """Count the cells of this page by tier."""
        return Counter(cell.tier for cell in self.cells)

    def states(self, setting: str) -> dict[str, int]:
        """Count the cells of this page by what is known of a setting."""
        return Counter(cell.attention[setting].state for cell in self.cells if setting in cell.attention)


def split_matrix(cells: Sequence[CatalogCell]) -> list[MatrixPage]:
    """Return the pages of the matrix; none when a single page is enough."""
    if len(cells) <= CELLS_PER_PAGE:
        return []
    pages = []
    for gpu, of_gpu in _grouped(cells, lambda cell: cell.axes["gpu"]).items():
        if len(of_gpu) <= CELLS_PER_PAGE:
            pages.append(MatrixPage(name=gpu, title=gpu, cells=of_gpu))
            continue
        for torch, group in _grouped(of_gpu, lambda cell: cell.axes["torch"]).items():
            parts = [group[begin : begin + CELLS_PER_PAGE] for begin in range(0, len(group), CELLS_PER_PAGE)]
            for number, part in enumerate(parts, 1):
                name, title = f"{gpu}-torch{torch}", f"{gpu}, torch {torch}"
                if len(parts) > 1:
                    name, title = f"{name}-{number}", f"{title}, part {number} of {len(parts)}"
                pages.append(MatrixPage(name=name, title=title, cells=part))
    return pages


def _grouped(cells: Iterable[CatalogCell], key: Callable[[CatalogCell], str]) -> Mapping[str, list[CatalogCell]]:
    groups: dict[str, list[CatalogCell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups
