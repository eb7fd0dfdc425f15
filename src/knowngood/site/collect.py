"""Reads a project's cells, evidence, records, incidents and facts into a catalog: the edge of the site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import cell as cells
from knowngood import compatibility, sealed
from knowngood.building import sizes
from knowngood.errors import UsageError
from knowngood.runs import index
from knowngood.runs.observed import Run, printable
from knowngood.runs.standing import Standing
from knowngood.site import catalog

if TYPE_CHECKING:
    from knowngood.cell import Cell
    from knowngood.incidents.model import Incident
    from knowngood.project import Project
    from knowngood.solving.factbook import Factbook


NEWEST = 20
"""Runs of a cell that its page and the catalog have; the others are counted."""
Found = Mapping[str, tuple[Standing, Sequence[Run]]]
"""Cell to how it stands, and its newest runs."""


def read(folder: Path) -> Found:
    """What a folder of evidence says."""
    return index.ask(folder, lambda it: {name: (how, it.runs(name, NEWEST)) for name, how in it.standings().items()})


def tiers(here: Project, found: Found) -> dict[str, str]:
    """How far the cells of the matrix are proven."""
    locked, nothing = here.tree.locked(), Standing()
    names = map(str, here.matrix.cells)
    return {name: str(found.get(name, (nothing,))[0].tier(locked=name in locked)) for name in names}


def collect(  # noqa: PLR0913, PLR0917
    here: Project, folder: Path, found: Found, known: Iterable[Incident], book: Factbook, repository: str | None
) -> catalog.Catalog:
    """The catalog of a project, with what the evidence in `folder` says; images are of `repository`, else local."""
    records = [record for cell in here.matrix.cells if (record := here.tree.load_record(cell))]
    weighed = sizes.measure(records)
    images = {
        record.cell: catalog.Image(digest=record.manifest.digest, size=size.size, own=size.own)
        for record, size in zip(records, weighed.cells, strict=True)
    }
    made, left_out = seen(here, folder, book, repository, images, found)
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


def seen(  # noqa: PLR0913, PLR0917
    here: Project,
    folder: Path,
    book: Factbook,
    repository: str | None = None,
    images: Mapping[str, catalog.Image] | None = None,
    found: Found | None = None,
) -> tuple[list[catalog.Cell], list[str]]:
    """The cells of the matrix and those that only evidence knows, with their runs; and what was left out, and why."""
    matrix = here.matrix
    wanted = {str(cell): cell for cell in matrix.cells}
    found = read(folder) if found is None else found
    strays, left_out = _strays(found, wanted)
    left_out += _changed(folder)
    locked = here.tree.locked()
    made = []
    for name, cell in (wanted | strays).items():
        how, runs = found.get(name, (Standing(), []))
        left_out += how.left_out
        made.append(
            _cell(
                cell,
                how,
                runs,
                locked=name in locked,
                aliases=[alias for alias, target in matrix.aliases.items() if target == name],
                in_matrix=name in wanted,
                driver=book.fact("torch", cell.torch, "driver_minimum"),
                reference=_reference(here, cell, repository) if name in wanted else None,
                image=(images or {}).get(name),
            )
        )
    return made, left_out


def _strays(found: Iterable[str], wanted: Mapping[str, Cell]) -> tuple[dict[str, Cell], list[str]]:
    """The cells that only evidence knows, and the folders that are of no cell."""
    strays, left_out = {}, []
    for name in found:
        if name not in wanted:
            try:
                strays[name] = cells.parse(name)
            except UsageError as error:
                left_out.append(printable(f"{name}/: {error}"))
    return strays, left_out


def _changed(folder: Path) -> Iterator[str]:
    """The reproductions' runs that are not what was stored; their pages are without them."""
    for path in sorted(folder.glob("incidents/*/*.json")):
        if defect := sealed.defect(path, path.read_bytes()):
            yield printable(f"{path.relative_to(folder)}: {defect}")


def _reference(here: Project, cell: Cell, repository: str | None) -> str | None:
    """The image as it is pulled; built here it has the cell's name as its tag."""
    if repository is None:
        return f"knowngood:{cell}"
    from knowngood.registries.reference import immutable_tag

    locked = here.tree.load(cell)
    return f"{repository}:{immutable_tag(str(cell), locked.digest)}" if locked else None


def _cell(  # noqa: PLR0913 - one keyword an attribute of the catalog
    cell: Cell,
    how: Standing,
    runs: Iterable[Run],
    *,
    locked: bool,
    aliases: list[str],
    in_matrix: bool,
    driver: str | None,
    reference: str | None,
    image: catalog.Image | None,
) -> catalog.Cell:
    attention = {}
    for setting, outcome in how.attention.items():
        figures = how.figures.get(setting)
        attention[setting] = {
            "outcome": outcome,
            "reason": how.reasons.get(setting, ""),
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
            "tier": str(how.tier(locked=locked)),
            "driver_minimum": driver,
            "reference": reference,
            "image": image,
            "attention": attention,
            "evidence": how.best,
            "runs": [vars(run) for run in runs],
            "runs_seen": how.count,
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
