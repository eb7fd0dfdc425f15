"""`knowngood build-matrix [SELECT]`: all steps from matrix.yaml to evidence; `nox -s build-matrix` runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from knowngood.cli import compile as compile_command
from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.formatting import format_table
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.engine.container_engine import Engine
from knowngood.images import build_survey, dry_run, free_resources, matrix_plan, pipeline
from knowngood.images.matrix_plan import Holdings, LayerKey, PlanInput
from knowngood.images.pipeline import CellResult, CellStatus, PipelineOptions
from knowngood.lock import wheelhouse
from knowngood.project.cell_answers import split_broken_cells
from knowngood.project.checkout import Project, find_project
from knowngood.registry import wheel_supply
from knowngood.smoke.suite_command import SuiteOptions
from knowngood.wheels.compile_request import CompileOptions, needed_wheels


@dataclass(frozen=True, kw_only=True)
class BuildOrder:
    """Which cells a command builds, and how."""

    select: Sequence[str]
    locked: bool = False
    record: bool = False
    compile: bool = False
    dry_run: bool = False
    builder: str | None = None
    """The builder of `docker buildx`; `None` for the engine's own."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_build_arguments(parser)
    shared_arguments.add_suite_part(parser, quick=True)


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the cells, and how and where they are built."""
    shared_arguments.add_select(parser, default="default")
    shared_arguments.add_locked(parser)
    parser.add_argument("--record", action="store_true", help="write the digests of the image beside its Dockerfile")
    parser.add_argument("--compile", action="store_true", help="compile the wheels that the wheelhouse lacks")
    parser.add_argument("--dry-run", action="store_true", help="print the exact commands and do nothing")
    parser.add_argument(
        "--builder",
        metavar="NAME",
        help="build with this builder of `docker buildx`, and load the image into the engine (docs/builders.md)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Build the selected cells, and run the suite in each image."""
    options = shared_arguments.suite_options_from_arguments(arguments)
    return build_cells(order_from_arguments(arguments), suite=options)


def order_from_arguments(arguments: argparse.Namespace) -> BuildOrder:
    """Return what the arguments of `add_build_arguments` ask for."""
    return BuildOrder(
        select=arguments.select,
        locked=arguments.locked,
        record=arguments.record,
        compile=arguments.compile,
        dry_run=arguments.dry_run,
        builder=arguments.builder,
    )


def build_cells(order: BuildOrder, *, suite: SuiteOptions | None, again: bool = False) -> Answer:
    """Build the selected cells and, with `suite`, run it in them, with `again` also where there is good evidence.

    The first cell that fails decides the exit code.
    """
    project = find_project()
    cells, broken = _sound_cells(project, project.matrix.select_cells(order.select))
    options = PipelineOptions(
        wheelhouse=wheelhouse.wheelhouse_folder(),
        locked=order.locked,
        prove=suite is not None,
        suite=suite or SuiteOptions(),
        force_smoke=again,
        record=order.record,
    )
    if order.dry_run:
        if broken:
            raise KnowngoodError("\n".join(str(result.error) for result in broken))
        commands = _dry_run_commands(order, project, cells, options)
        return Answer(0, {"commands": commands}, "\n".join(dict.fromkeys(commands)))
    results, compile_codes = broken, []
    if cells:
        with report_progress("engine") as notify:
            engine = _find_engine(project, cells, options, notify)
            notify(f"docker {engine.version} at {engine.host}")
            if order.builder:
                engine = container_engine.use_builder(engine, order.builder)
        _fetch_wheels(project, cells, options.wheelhouse)
        compile_codes = _compile_wheels(project, cells) if order.compile else []
        results += _build_one_by_one(project, cells, options, engine)
    codes = [*(item.error.exit_code for item in results if item.error), *compile_codes]
    document = {"cells": [result.document(project.root) for result in results]}
    return Answer(codes[0] if codes else 0, document, format_results(results, project))


def _sound_cells(project: Project, cells: Sequence[Cell]) -> tuple[list[Cell], list[CellResult]]:
    """Return the cells that the rules allow, and a failed result for each of the others."""
    sound, broken = split_broken_cells(project, cells)
    for error in broken.values():
        print(error, file=sys.stderr)
    failed = [
        CellResult(cell=name, status=CellStatus.FAILED, seconds=0.0, error=error) for name, error in broken.items()
    ]
    return sound, failed


def _find_engine(project: Project, cells: Sequence[Cell], options: PipelineOptions, notify: Notify) -> Engine:
    """Return an engine that builds, or any where the suite alone is asked for and all recorded images are there."""
    engine = container_engine.ensure_engine(notify=notify, builds=False)
    cell_pipeline = pipeline.Pipeline(project, options, engine)
    locks = [project.tree.load(cell) for cell in cells]
    if all(lock and cell_pipeline.find_recorded_image(lock) for lock in locks):
        return engine
    return container_engine.ensure_engine(notify=notify)


def _dry_run_commands(
    order: BuildOrder, project: Project, cells: Sequence[Cell], options: PipelineOptions
) -> list[str]:
    missing = needed_wheels(cells, project.matrix) if order.compile else ()
    commands = [f"knowngood compile '{cell}'" for cell in dict.fromkeys(wheel.cell for wheel in missing)]
    engine = dry_run.dry_run_engine()
    if order.builder:
        engine = container_engine.use_builder(engine, order.builder)
    house = None if order.compile else options.wheelhouse
    cell_pipeline = pipeline.Pipeline(project, options, engine)
    _, ordered = _survey_in_build_order(project, cells, house, engine if engine.version else None)
    for cell in ordered.values():
        commands += dry_run.cell_commands(cell_pipeline, cell, compiled=order.compile)
    return commands


def _survey_in_build_order(
    project: Project, cells: Sequence[Cell], house: Path | None, engine: Engine | None
) -> tuple[Holdings, dict[PlanInput, Cell]]:
    """Return what exists already, and the cells in the order in which `knowngood build --plan` shows them."""
    inputs = build_survey.survey_cells(project, cells, house)
    holdings = build_survey.survey_holdings(project, engine)
    return holdings, {item: inputs[item] for item in matrix_plan.order_cells(list(inputs), holdings)}


def _build_one_by_one(
    project: Project, cells: Sequence[Cell], options: PipelineOptions, engine: Engine
) -> Iterator[CellResult]:
    """Yield the result of each cell when it is ready. Cells that build layers for others come first."""
    cell_pipeline = pipeline.Pipeline(project, options, engine)
    holdings, ordered = _survey_in_build_order(project, cells, options.wheelhouse, engine)
    made: set[LayerKey] = set()
    for number, (item, cell) in enumerate(ordered.items(), 1):
        place = f"[{number}/{len(ordered)}] " if len(ordered) > 1 else ""
        missing = {key: size for key, size in matrix_plan.layers_to_build(item, holdings) if key not in made}
        if lack := free_resources.describe_lack_of_disk(
            sum(missing.values()), free_resources.measure_free_disk(engine)
        ):
            error = MissingError(f"{cell}: {lack}")
            result = CellResult(cell=item.cell, status=CellStatus.FAILED, seconds=0, error=error)
        else:
            with report_progress(f"{place}{cell}") as notify:
                result = cell_pipeline.run(cell, notify)
        if result.error:
            print(f"{result.cell}: {result.error}", file=sys.stderr)
        made |= set(missing) if result.image else set()
        yield result


def _fetch_wheels(project: Project, cells: Sequence[Cell], wheel_folder: Path) -> None:
    """Fill the wheelhouse from the places that have compiled wheels.

    What cannot be fetched is printed; the cell is then built as one whose wheel is missing.
    """
    with report_progress("wheels") as notify:
        for cell in cells:
            try:
                wheel_supply.supply_wheels(project, [cell], wheel_folder, notify)
            except KnowngoodError as error:
                print(f"{cell}: {error}", file=sys.stderr)


def _compile_wheels(project: Project, cells: Sequence[Cell]) -> list[int]:
    """Fill the wheelhouse, and return an exit code for each wheel that failed.

    A failure is printed; the cell is then built as its twin without flash-attn.
    """
    wheel_orders = needed_wheels(cells, project.matrix)
    options = CompileOptions(wheelhouse=wheelhouse.wheelhouse_folder())
    documents = compile_command.compile_wheels(project, wheel_orders, options) if wheel_orders else []
    failed = [item for item in documents if "error" in item]
    for item in failed:
        print(item["error"], file=sys.stderr)
    return [item["exit"] for item in failed]


def format_results(results: list[CellResult], project: Project) -> str:
    """Return the table of results, with notes and errors below it."""
    rows = [
        [
            result.cell,
            str(result.status),
            str(result.tier),
            result.image.digest[:19] if result.image else "-",
            f"{result.image.size / 1e9:.2f} GB" if result.image else "-",
            f"{result.seconds:.0f} s",
            str(result.evidence.relative_to(project.root)) if result.evidence else "-",
        ]
        for result in results
    ]
    header = ["cell", "status", "tier", "image", "size", "time", "evidence"]
    notes = [f"{result.cell}: {result.note}" for result in results if result.note]
    errors = [f"{result.cell}: FAILED: {result.error}" for result in results if result.error]
    return "\n".join([format_table(header, rows), *notes, *errors])
