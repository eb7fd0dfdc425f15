"""Gathers what planning needs from the project, the engine and the cache, and plans a build of several cells."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from knowngood.base import base_image
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.core.image_record import ImageRecord
from knowngood.engine import container_engine
from knowngood.engine.container_engine import Engine
from knowngood.images import image_build, matrix_plan
from knowngood.images.build_command import INPUTS_LABEL
from knowngood.images.build_inputs import read_image_shape, read_recipe_digest
from knowngood.images.matrix_plan import Holdings, PlanInput
from knowngood.lock import cell_locking
from knowngood.project import core_facts
from knowngood.project.checkout import Project


def survey_plan(
    project: Project,
    cells: Iterable[Cell],
    house: Path | None,
    engine: Engine | None,
) -> matrix_plan.MatrixPlan:
    """Return the plan for some cells of the project; the other cells of its matrix may share layers with them.

    `house` is the wheelhouse.
    """
    inputs = list(survey_cells(project, cells, house))
    names = {item.cell for item in inputs}
    others = [cell for cell in project.matrix.cells if str(cell) not in names]
    return matrix_plan.plan_matrix(inputs, survey_holdings(project, engine), list(survey_cells(project, others, house)))


def survey_cells(project: Project, cells: Iterable[Cell], house: Path | None) -> dict[PlanInput, Cell]:
    """Return each cell as planning needs it, with the cell that was asked for.

    A cell whose flash-attn wheel is not in the wheelhouse `house` is replaced by its `fa0` twin, which is listed once.
    Without a wheelhouse (`None`) the wheels will be made later, and no cell is replaced.
    """
    inputs: dict[str, tuple[PlanInput, Cell]] = {}
    recipe_digest = read_recipe_digest(project)
    for cell in cells:
        item = survey_cell(project, cell, house, recipe_digest)
        inputs.setdefault(item.cell, (item, cell))
    return dict(inputs.values())


def survey_cell(project: Project, cell: Cell, house: Path | None, recipe_digest: str) -> PlanInput:
    """Return a cell as planning needs it; see `survey_cells`."""
    asked_for, note = cell, ""
    try:
        if house:
            cell, _ = cell_locking.choose_buildable_cell(
                cell, project.matrix, house, cxx11abi=core_facts.load_torch_cxx11abi
            )
    except cell_locking.NoWheelError as error:
        return PlanInput(cell=str(cell), missing_wheel=str(error))
    if cell != asked_for:
        note = f"in place of {asked_for}: the wheelhouse has no flash-attn wheel for it"
    try:
        locked_cell = project.tree.load(cell)
    except UsageError as error:
        return PlanInput(cell=str(cell), lock_defect=str(error), note=note)
    if locked_cell is None or locked_cell.inputs != cell_locking.lock_inputs_digest(
        project.matrix.entry(cell), project.matrix
    ):
        reason = "it has no lock" if locked_cell is None else "its lock follows from an older matrix.yaml"
        return PlanInput(cell=str(cell), lock_problem=reason, note=note)
    base_digest = base_image.read_base_digest(project, locked_cell.base)
    if base_digest is None:
        return PlanInput(cell=str(cell), lock_problem=f"base {locked_cell.base} has no packages.lock", note=note)
    shape = read_image_shape(project, locked_cell, base_digest, recipe_digest)
    return PlanInput(cell=str(cell), layers=locked_cell.layers, shape=shape, note=note)


def survey_holdings(project: Project, engine: Engine | None) -> Holdings:
    """Return what exists already: in the engine, if one answers, in the cache and in the committed records."""
    records = [*_committed_records(project), *image_build.load_kept_records()]
    images = _engine_images(engine) if engine else frozenset()
    layers = {
        (layer.name, record.shape.layer_inputs)
        for record in records
        if record.shape.inputs in images
        for layer in record.layers
    }
    bases = {digest for name in project.matrix.bases if (digest := base_image.find_cached_digest(project, name))}
    return Holdings(images=images, layers=frozenset(layers), bases=frozenset(bases), records=tuple(records))


def _committed_records(project: Project) -> list[ImageRecord]:
    records = []
    for cell in project.matrix.cells:
        with contextlib.suppress(UsageError):  # `knowngood cells --size` and `verify` report what is wrong with it
            records.append(project.tree.load_record(cell))
    return [record for record in records if record]


def _engine_images(engine: Engine) -> frozenset[str]:
    """Return the input digests of the knowngood images that the engine has."""
    with contextlib.suppress(KnowngoodError), container_engine.docker_client(engine) as client:
        images = client.api.images(filters={"label": [INPUTS_LABEL]})
        labels = [image["Labels"][INPUTS_LABEL] for image in images if image.get("Labels")]
        return frozenset(str(label).removeprefix("sha256:") for label in labels)
    return frozenset()
