"""Reads a project's cells, evidence, records, incidents and facts into a catalog: the edge of the site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import cell as cells
from knowngood import compatibility, sizes
from knowngood.errors import UsageError
from knowngood.site import catalog, kept, workers
from knowngood.site.observed import Seen

if TYPE_CHECKING:
    from knowngood.cell import Cell
    from knowngood.factbook import Factbook
    from knowngood.incident import Incident
    from knowngood.project import Project

MANY = 200
"""Files of evidence from which on a second process is worth its start."""


def collect(
    here: Project, folder: Path, known: Iterable[Incident], book: Factbook, repository: str | None
) -> catalog.Catalog:
    """The catalog of a project, with the evidence in `folder`; images are those of `repository`, else local ones."""
    records = [record for cell in here.matrix.cells if (record := here.tree.load_record(cell))]
    weighed = sizes.measure(records)
    images = {
        record.cell: catalog.Image(digest=record.manifest.digest, size=size.size, own=size.own)
        for record, size in zip(records, weighed.cells, strict=True)
    }
    made, left_out = seen(here, folder, book, repository, images)
    return catalog.Catalog(
        schema=catalog.SCHEMA,
        cells=made,
        layers=[
            catalog.Layer(name=layer.name, digest=layer.digest, size=layer.size, cells=list(layer.cells))
            for layer in weighed.layers
        ],
        incidents=[_incident(incident) for incident in known],
        compatibility=[
            catalog.Table(
                title=title,
                text=text,
                head=[name.replace("<br>", " ") for name in head],
                rows=[list(row) for row in rows],
            )
            for title, text, head, rows in compatibility.sections()
        ],
        left_out=left_out,
    )


def seen(
    here: Project,
    folder: Path,
    book: Factbook,
    repository: str | None = None,
    images: Mapping[str, catalog.Image] | None = None,
) -> tuple[list[catalog.Cell], list[str]]:
    """The cells of the matrix and those that only evidence knows, with their runs; and what was left out, and why."""
    matrix = here.matrix
    wanted = {str(cell): cell for cell in matrix.cells}
    strays, left_out = _strays(folder, wanted)
    found = _observed(here, folder, wanted | strays)
    made = []
    for name, cell in (wanted | strays).items():
        left_out += found[name].left_out
        made.append(
            _cell(
                cell,
                found[name],
                aliases=[alias for alias, target in matrix.aliases.items() if target == name],
                in_matrix=name in wanted,
                driver=book.fact("torch", cell.torch, "driver_minimum"),
                reference=_reference(here, cell, repository) if name in wanted else None,
                image=(images or {}).get(name),
            )
        )
    return made, left_out


def _strays(folder: Path, wanted: Mapping[str, Cell]) -> tuple[dict[str, Cell], list[str]]:
    """The cells that only evidence knows, and the folders that are of no cell."""
    found, left_out = {}, []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name in wanted or path.name == "incidents" or not path.is_dir():
            continue
        try:
            found[path.name] = cells.parse(path.name)
        except UsageError as error:
            left_out.append(f"{path.name}/: {error}")
    return found, left_out


def _observed(here: Project, folder: Path, chosen: Mapping[str, Cell]) -> dict[str, Seen]:
    look = partial(_observe, here, folder)
    if sum(1 for _ in folder.glob("*/*.json")) < MANY:
        return dict(zip(chosen, map(look, chosen.values()), strict=True))
    with workers.pool() as pool:
        return dict(zip(chosen, pool.map(look, chosen.values(), chunksize=8), strict=True))


def _observe(here: Project, folder: Path, cell: Cell) -> Seen:
    return kept.seen(folder, str(cell), locked=(here.tree.cell_folder(cell) / "cell.json").exists())


def _reference(here: Project, cell: Cell, repository: str | None) -> str | None:
    """The image as it is pulled; built here it has the cell's name as its tag."""
    if repository is None:
        return f"knowngood:{cell}"
    from knowngood.reference import immutable_tag

    locked = here.tree.load(cell)
    return f"{repository}:{immutable_tag(str(cell), locked.digest)}" if locked else None


def _cell(  # noqa: PLR0913 - one keyword an attribute of the catalog
    cell: Cell,
    seen: Seen,
    *,
    aliases: list[str],
    in_matrix: bool,
    driver: str | None,
    reference: str | None,
    image: catalog.Image | None,
) -> catalog.Cell:
    attention = {}
    for setting, outcome in seen.attention.items():
        figures = seen.figures.get(setting)
        attention[setting] = {
            "outcome": outcome,
            "reason": seen.reasons.get(setting, ""),
            **(
                {"step_ms": figures.step_ms, "peak_bytes": figures.peak_bytes, "length": figures.length}
                if figures
                else {}
            ),
        }
    return catalog.Cell.model_validate(
        {
            "id": str(cell),
            "axes": {str(axis): value for axis, value in cell.axes().items()},
            "aliases": aliases,
            "in_matrix": in_matrix,
            "tier": str(seen.tier),
            "driver_minimum": driver,
            "reference": reference,
            "image": image,
            "attention": attention,
            "evidence": seen.best,
            "runs": [vars(run) for run in seen.runs],
        }
    )


def _incident(incident: Incident) -> catalog.Incident:
    return catalog.Incident(
        id=incident.id,
        title=incident.title,
        kind=str(incident.kind),
        severity=str(incident.severity),
        component=incident.component,
        signatures=[signature.text for signature in incident.signatures],
        affected=[{name: str(spec) for name, spec in item.items()} for item in incident.affected],
        because=incident.because,
        fix=[fix.document() for fix in incident.fix],
        source=list(incident.source),
        confidence=incident.confidence,
    )
