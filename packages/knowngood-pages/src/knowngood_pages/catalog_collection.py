"""Collects the catalog of a project: its cells, evidence, image records, incidents and facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.core import cell as cells
from knowngood.core.errors import UsageError
from knowngood.evidence import cell_runs, sealed_files
from knowngood.evidence.build_times import read_build_times
from knowngood.evidence.cell_answer import CellAnswer, answer_about_cell, describe_tier
from knowngood.evidence.cell_standing import CellStanding
from knowngood.evidence.observed_run import RecordedRun, printable_name
from knowngood.images import image_sizes
from knowngood.registry.image_reference import immutable_tag
from knowngood.smoke.predictions import PREDICTIONS_FILE, Prediction, explain_check, load_predictions
from knowngood_facts.compat.cell_judgement import judge_cell
from knowngood_facts.reports import compatibility_tables
from knowngood_pages import catalog

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.project.checkout import Project
    from knowngood.project.release_seal import ReleaseSeal
    from knowngood_facts.compat.incident import Incident
    from knowngood_facts.compat.knowledge import CompatKnowledge


LISTED_RUNS = 20
"""The most runs of a cell that the catalog lists; all of them are counted."""
CellStandings = Mapping[str, tuple[CellStanding, Sequence[RecordedRun]]]
"""Cell to its standing and its newest runs."""


def read_cell_standings(folder: Path, seal: ReleaseSeal | None = None) -> CellStandings:
    """Read the standing and the newest runs of every cell from a folder of evidence.

    With a seal, a run that it does not cover raises no tier.
    """
    runs = cell_runs.read_cell_runs(folder, seal)
    return {name: (item.standing, item.runs[-LISTED_RUNS:]) for name, item in runs.items()}


def collect_catalog(  # noqa: PLR0913, PLR0917
    here: Project,
    folder: Path,
    standings: CellStandings,
    incidents: Iterable[Incident],
    known: CompatKnowledge,
    repository: str | None,
) -> catalog.Catalog:
    """Return the catalog of a project.

    `folder` is that of the evidence from which `standings` was read. Images are those of `repository`, or local ones.
    """
    records = [record for cell in here.matrix.cells if (record := here.tree.load_record(cell))]
    sizes = image_sizes.measure_images(records)
    images = {
        record.cell: catalog.CatalogImage(digest=record.manifest.digest, size=size.size, own=size.own)
        for record, size in zip(records, sizes.cells, strict=True)
    }
    catalog_cells, left_out = collect_catalog_cells(here, folder, known, repository, images, standings)
    return catalog.Catalog(
        schema=catalog.CATALOG_SCHEMA,
        cells=catalog_cells,
        build_time=read_build_times(folder).text,
        layers=[
            catalog.CatalogLayer(name=layer.name, digest=layer.digest, size=layer.size, cells=list(layer.cells))
            for layer in sizes.layers
        ],
        incidents=[_catalog_incident(incident) for incident in incidents],
        compatibility=[
            catalog.CatalogTable(
                title=title,
                text=text,
                head=[name.replace("<br>", " ") for name in head],
                rows=[list(row) for row in rows],
            )
            for title, text, head, rows in compatibility_tables.list_compatibility_tables()
        ],
        left_out=left_out,
    )


def collect_catalog_cells(  # noqa: PLR0913, PLR0917
    here: Project,
    folder: Path,
    known: CompatKnowledge,
    repository: str | None = None,
    images: Mapping[str, catalog.CatalogImage] | None = None,
    standings: CellStandings | None = None,
) -> tuple[list[catalog.CatalogCell], list[str]]:
    """Return the cells of the matrix, then those that only evidence knows; and what was left out, with the reasons."""
    matrix = here.matrix
    wanted = {str(cell): cell for cell in matrix.cells}
    standings = read_cell_standings(folder, here.seal) if standings is None else standings
    strays, left_out = _cells_outside_matrix(standings, wanted)
    left_out += _changed_reproduction_runs(folder)
    locked, recorded, predictions = here.tree.locked(), here.tree.recorded(), _predictions(here)
    catalog_cells = []
    for name, cell in (wanted | strays).items():
        standing, runs = standings.get(name, (CellStanding(), []))
        left_out += [*standing.left_out, *map(sealed_files.describe_unsigned_run, standing.unsigned)]
        lock = here.tree.load(cell) if name in wanted and name in locked else None
        tag = immutable_tag(name, lock.digest) if lock else None
        glibc = matrix.bases[matrix.entry(cell).base].glibc if name in wanted else None
        judgement = judge_cell(known.universe, cell, glibc)
        answer = answer_about_cell(judgement, cell, standing, locked=name in locked, recorded=name in recorded)
        document = {
            "id": name,
            "axes": {str(axis): value for axis, value in cell.axes().items()},
            "aliases": [alias for alias, target in matrix.aliases.items() if target == name],
            "in_matrix": name in wanted,
            "tier": str(answer.tier),
            "tier_text": describe_tier(answer.tier),
            "errors": [dict(error.finding) for error in answer.errors],
            "driver_minimum": known.universe.space.book.fact("torch", cell.torch, "driver_minimum"),
            "reference": _image_reference(name, tag, repository) if name in wanted else None,
            "published": repository is not None,
            "tag": tag,
            "compiled": [item.file for item in lock.distributions if item.made_here] if lock else [],
            "image": (images or {}).get(name),
            "attention": _attention(answer, standing, predictions),
            "evidence": standing.best,
            "proof": standing.run and vars(standing.run),
            "runs": [vars(run) for run in runs],
            "retired": (retired := matrix.retired.get(name)) and retired.document(),
            "runs_seen": standing.count,
        }
        catalog_cells.append(catalog.CatalogCell.model_validate(document))
    return catalog_cells, left_out


def _cells_outside_matrix(standings: Iterable[str], wanted: Mapping[str, Cell]) -> tuple[dict[str, Cell], list[str]]:
    """Return the cells that only evidence knows, and why other folders are left out."""
    strays, left_out = {}, []
    for name in standings:
        if name not in wanted:
            try:
                strays[name] = cells.parse_cell(name)
            except UsageError as error:
                left_out.append(printable_name(f"{name}/: {error}"))
    return strays, left_out


def _changed_reproduction_runs(folder: Path) -> Iterator[str]:
    """Yield the runs of reproductions whose files have changed since they were stored; pages leave them out."""
    for path in sorted(folder.glob("incidents/*/*.json")):
        if defect := sealed_files.find_defect(path, path.read_bytes()):
            yield printable_name(f"{path.relative_to(folder)}: {defect}")


def _image_reference(name: str, tag: str | None, repository: str | None) -> str | None:
    """Return the reference by which the image is pulled; a local image has the cell's id as its tag."""
    if repository is None:
        return f"knowngood:{name}"
    return f"{repository}:{tag}" if tag else None


def _attention(answer: CellAnswer, standing: CellStanding, predictions: list[Prediction]) -> dict[str, dict[str, Any]]:
    """Return what is known of each attention setting in a cell, with its figures where there are some."""
    attention: dict[str, dict[str, Any]] = {}
    on_gpu = bool(answer.run and answer.run.sm)
    for setting, state in answer.settings.items():
        defects = [_defect(predictions, answer.cell, check, on_gpu) for check in state.defects]
        attention[setting] = state.document() | {
            "outcome": standing.attention.get(setting, "not-run"),
            "text": state.text,
            "defects": defects,
        }
        if figures := standing.figures.get(setting):
            attention[setting] |= {
                "step_ms": figures.step_ms,
                "peak_bytes": figures.peak_bytes,
                "length": figures.length,
            }
    return attention


def _predictions(here: Project) -> list[Prediction]:
    """Return the project's predictions; none in a project that has no file of them."""
    return load_predictions(here.root) if (here.root / PREDICTIONS_FILE).is_file() else []


def _defect(predictions: list[Prediction], cell: Cell, check: str, on_gpu: bool) -> dict[str, str | None]:
    prediction = explain_check(predictions, cell, check, gpu=on_gpu)
    because = prediction.because if prediction else "it was predicted when the suite ran, and is not any more"
    return {"check": check, "because": because, "incident": prediction.incident if prediction else None}


def _catalog_incident(incident: Incident) -> catalog.CatalogIncident:
    return catalog.CatalogIncident(
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
