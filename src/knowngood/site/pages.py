"""From a catalog to the site's files, name to text. Pure, but for the templates that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.evidence import Tier
from knowngood.site import catalog as catalogs
from knowngood.site import sheets
from knowngood.solving.universe import ATTENTION

if TYPE_CHECKING:
    from jinja2 import Environment

    from knowngood.site.catalog import Catalog, Cell

GLYPHS = {"pass": "✓", "fail": "✗", "refused": "⊘", "not-run": "·"}
MEANINGS = {
    "pass": "trains; its own kernels ran",
    "fail": "wrong or broken",
    "refused": "refuses with an error",
    "not-run": "cannot run here",
}
TIERS = {
    Tier.TRAINS_ON_GPU: "trains on a GPU",
    Tier.TRAINS_ON_CPU: "trains on a CPU",
    Tier.BUILT: "built, not seen training",
    Tier.RESOLVED: "locked, not built",
    Tier.NONE: "not locked",
}
ON_THE_FIRST_PAGE = 40
"""Cells up to which the first page shows the matrix itself."""


def files(
    catalog: Catalog, templates: Path, incidents: Mapping[str, str], runs_at: str | None = None
) -> dict[str, str]:
    """Every page; `incidents` are their pages, as HTML; `runs_at` is where the folder of evidence can be read."""
    reader = environment(templates)
    reader.globals.update(
        glyphs=GLYPHS, meanings=MEANINGS, tiers=TIERS, settings=list(ATTENTION), greatest=greatest, runs_at=runs_at
    )
    parts = sheets.sheets(catalog.cells)
    shown = {"figures": _scale(catalog), "sheet": None, "sheets": [], "left": [], "cells": catalog.cells}
    made: dict[str, tuple[str, dict[str, Any]]] = {
        "index.html": ("index.html.j2", {"small": len(catalog.cells) <= ON_THE_FIRST_PAGE}),
        "matrix.html": ("matrix.html.j2", shown | {"sheets": parts, "left": catalog.left_out}),
        "compatibility.html": ("compatibility.html.j2", {}),
        "sizes.html": ("sizes.html.j2", {}),
        "diagnose.html": ("diagnose.html.j2", {}),
        "incidents/index.html": ("incidents.html.j2", {"kinds": _kinds(catalog)}),
    }
    for sheet in parts:
        made[f"matrix/{sheet.name}.html"] = "matrix.html.j2", shown | {"sheet": sheet, "cells": sheet.cells}
    found = {name: _render(reader, name, template, catalog, more) for name, (template, more) in made.items()}
    for cell in catalog.cells:
        name = f"cells/{cell.id}.html"
        more = {"cell": cell, "history": history(cell), "layers": [it for it in catalog.layers if cell.id in it.cells]}
        found[name] = _render(reader, name, "cell.html.j2", catalog, more)
    titles = {incident.id: incident.title for incident in catalog.incidents}
    for incident, html in incidents.items():
        name = f"incidents/{incident}.html"
        found[name] = _render(reader, name, "incident.html.j2", catalog, {"title": titles[incident], "html": html})
    static = sorted(path for pattern in ("*.css", "*.js") for path in (templates / "static").glob(pattern))
    found |= {f"static/{path.name}": path.read_text(encoding="utf-8") for path in static}
    return found | {"catalog.json": catalog.text(), "catalog.schema.json": catalogs.schema()}


def _render(environment: Environment, name: str, template: str, catalog: Catalog, more: Mapping[str, Any]) -> str:
    root = "../" * name.count("/")
    return environment.get_template(template).render(catalog=catalog, root=root, page=name, **more)


@cache
def environment(templates: Path) -> Environment:
    """Of the templates in a folder; all that is filled in is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["gigabytes"] = lambda size: f"{size / 1e9:.2f} GB"
    made.filters["megabytes"] = lambda size: f"{size / 1e6:,.1f} MB"
    return made


def _scale(catalog: Catalog) -> dict[str, float]:
    """The greatest figures: the whole length of a bar."""
    every = [item for cell in catalog.cells for item in cell.attention.values() if item.step_ms]
    return {
        "ms": max((item.step_ms or 0 for item in every), default=1),
        "bytes": max((item.peak_bytes or 0 for item in every), default=1),
    }


def greatest(cell: Cell) -> dict[str, float]:
    """The greatest figures of a cell, the whole length of a bar in its squares, and how many settings have some."""
    every = [item for item in cell.attention.values() if item.step_ms]
    return {
        "ms": max((item.step_ms or 0 for item in every), default=1),
        "bytes": max((item.peak_bytes or 0 for item in every), default=1),
        "rows": len(every),
    }


def _kinds(catalog: Catalog) -> list[tuple[str, list[catalogs.Incident]]]:
    kinds: dict[str, list[catalogs.Incident]] = {}
    for incident in catalog.incidents:
        kinds.setdefault(incident.kind, []).append(incident)
    return sorted(kinds.items())


def history(cell: Cell) -> Sequence[Mapping[str, Any]]:
    """The runs, newest first, each with what changed since the one before it in the same kind of place."""
    found: list[dict[str, Any]] = []
    last: dict[str, catalogs.Run] = {}
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
        found.append({"run": run, "changed": changed})
    return found[::-1]
