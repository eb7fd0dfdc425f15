"""The commands that `--dry-run` prints, as a shell would take them; nothing is run, fetched or written."""

from __future__ import annotations

import shlex
from pathlib import Path

from knowngood.base import base_image
from knowngood.core.cell import Cell
from knowngood.core.errors import MissingError
from knowngood.engine import container_engine, embedded_engine, unpacked_engine
from knowngood.engine.container_engine import Engine
from knowngood.images import build_command, build_inputs
from knowngood.images.build_command import CellBuildPlan
from knowngood.images.dockerfile import render_dockerfile
from knowngood.images.pipeline import Pipeline, cell_log_path
from knowngood.index import index_settings
from knowngood.lock import cell_locking, resolver
from knowngood.project import core_facts
from knowngood.smoke import suite_command
from knowngood.smoke.suite_files import find_cell_suite

RUN_FOLDER = Path("$KNOWNGOOD_TMP")
"""Stands for the temporary folder of a run."""


def dry_run_engine() -> Engine:
    """Return the engine that a run would use; the embedded one need not be running."""
    system = container_engine.find_system_engine()
    if isinstance(system, Engine):
        return system
    if running := container_engine.find_embedded_engine():
        return running
    if obstacle := embedded_engine.describe_obstacle():
        raise MissingError(f"{system.reason}, and {obstacle}")
    paths = unpacked_engine.engine_paths()
    return Engine(
        host=f"unix://{paths.socket}",
        docker=(str(paths.docker), "--host", f"unix://{paths.socket}"),
        version="",
        buildkit="",
        containerd_store=True,
        embedded=True,
        network="host",
    )


def cell_commands(pipeline: Pipeline, cell: Cell, *, compiled: bool = False) -> list[str]:
    """Return the commands for one cell, with comments between them.

    With `compiled`, the wheels that the wheelhouse lacks count as compiled by then.
    """
    project, matrix, house = pipeline.project, pipeline.project.matrix, pipeline.options.wheelhouse
    commands = [] if pipeline.engine.version else ["knowngood engine up"]
    reason = ""
    try:
        if not compiled:
            cell, reason = cell_locking.choose_buildable_cell(
                cell, matrix, house, cxx11abi=core_facts.load_torch_cxx11abi
            )
    except cell_locking.NoWheelError as error:
        return [*commands, f"# {error}"]
    commands += [f"# {reason}"] if reason else []
    locked_cell = project.tree.load(cell)
    entry = matrix.entry(cell)
    if locked_cell is None or locked_cell.inputs != cell_locking.lock_inputs_digest(entry, matrix):
        request = cell_locking.resolver_request(entry, matrix)
        return [
            *commands,
            f"# {cell}: its lock is missing or stale; its layers are not known until it is made",
            shlex.join(
                resolver.resolver_command(request, RUN_FOLDER, house if matrix.compiled_packages(cell) else None)
            ),
            f"knowngood lock {cell}",
        ]
    metadata = cell_log_path(cell, "build").with_suffix(".json")
    build = build_command.buildx_command(dry_build_plan(pipeline, cell), pipeline.engine, metadata)
    return [*commands, f"# {cell}", shlex.join(build), *_smoke_commands(pipeline, cell)]


def dry_build_plan(pipeline: Pipeline, cell: Cell) -> CellBuildPlan:
    """Return the plan of the image of a cell that is locked."""
    project = pipeline.project
    locked_cell = project.tree.load(cell)
    assert locked_cell is not None  # noqa: S101
    settings = index_settings.read_index_settings()
    builder = base_image.find_builder_base(project, locked_cell.base)
    return build_inputs.plan_cell_build(
        project,
        locked_cell,
        render_dockerfile(locked_cell, project.templates),
        base_context=base_image.expected_base_context(project, locked_cell.base),
        builder_context=base_image.expected_base_context(project, builder) if builder else None,
        wheels=pipeline.options.wheelhouse if any(item.made_here for item in locked_cell.distributions) else None,
        secrets=dict(settings.files) | ({"env": RUN_FOLDER / "env"} if settings.env else {}),
    )


def _smoke_commands(pipeline: Pipeline, cell: Cell) -> list[str]:
    options = pipeline.options.suite
    if not pipeline.options.prove:
        return []
    arguments = suite_command.suite_arguments(options, cell_gpu=cell.gpu)
    folder = find_cell_suite(pipeline.project, cell)
    words = suite_command.docker_run_words(options, f"knowngood:{cell}", folder, arguments)
    return [shlex.join([*pipeline.engine.docker, *words])]
