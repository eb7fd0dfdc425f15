"""`knowngood build-matrix [SELECT]`: all steps from matrix.yaml to evidence; `nox -s build-matrix` runs it."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from knowngood.cli import compile as compile_command
from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.formatting import format_table
from knowngood.core.notify import ignore_notes
from knowngood.engine import container_engine
from knowngood.engine.container_engine import Engine
from knowngood.images import build_survey, cell_tasks, dry_run, matrix_plan, pipeline, task_crew
from knowngood.images.cell_tasks import CellResult, CellStatus
from knowngood.images.matrix_plan import Holdings, PlanInput
from knowngood.images.pipeline import PipelineOptions
from knowngood.lock import wheelhouse
from knowngood.project.cell_answers import split_broken_cells
from knowngood.project.checkout import Project, find_project
from knowngood.registry import wheel_supply
from knowngood.smoke.suite_command import SuiteOptions
from knowngood.wheels.compile_request import CompileOptions, WheelRequest, needed_wheels


@dataclass(frozen=True, kw_only=True)
class BuildOrder:
    """Which cells a command builds, and how."""

    select: Sequence[str]
    locked: bool = False
    record: bool = False
    compile: bool = False
    dry_run: bool = False
    jobs: int | None = None
    """Cells at once; `None` for as many as the machine has room for."""
    builder: str | None = None
    """The builder of `docker buildx`; `None` for the engine's own."""


@dataclass(frozen=True, kw_only=True)
class SuiteStep:
    """How the smoke suite runs in each image that a command builds."""

    options: SuiteOptions
    again: bool
    """Run it even if there is good evidence for the image."""

    def command_words(self, cell: str) -> list[str]:
        """Return the command that does the same for one cell."""
        options = self.options
        words = ["--quick" if options.quick else "--no-quick", *(["--gpus"] if options.gpus else [])]
        if self.again:
            return ["smoke", "run", cell, *words, "--timeout", str(options.seconds)]
        return ["build-matrix", cell, *words]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_build_arguments(parser)
    shared_arguments.add_suite_part(parser, quick=True)


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the cells, and how and where they are built."""
    shared_arguments.add_select(parser, default="default")
    shared_arguments.add_locked(parser)
    parser.add_argument(
        "--jobs", type=_parse_jobs, metavar="N", help="cells at once, within memory and disk (default: by processors)"
    )
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
    return build_cells(order_from_arguments(arguments), suite=SuiteStep(options=options, again=False))


def order_from_arguments(arguments: argparse.Namespace) -> BuildOrder:
    """Return what the arguments of `add_build_arguments` ask for."""
    return BuildOrder(
        select=arguments.select,
        locked=arguments.locked,
        record=arguments.record,
        compile=arguments.compile,
        dry_run=arguments.dry_run,
        jobs=arguments.jobs,
        builder=arguments.builder,
    )


def build_cells(order: BuildOrder, *, suite: SuiteStep | None) -> Answer:
    """Build the selected cells and, with `suite`, run it in them. The first cell that fails decides the exit code."""
    project = find_project()
    cells, broken = _sound_cells(project, project.matrix.select_cells(order.select))
    options = _pipeline_options(order, suite)
    if order.dry_run:
        if broken:
            raise KnowngoodError("\n".join(str(result.error) for result in broken))
        commands = _dry_run_commands(order, project, cells, options)
        return Answer(0, {"commands": commands}, "\n".join(dict.fromkeys(commands)))
    results, compile_codes = broken, []
    if cells:
        with report_progress("engine") as notify:
            engine = container_engine.ensure_engine(notify=notify)
            notify(f"docker {engine.version} at {engine.host}")
            if order.builder:
                engine = container_engine.use_builder(engine, order.builder)
        _fetch_wheels(project, cells, options.wheelhouse)
        compile_codes = _compile_wheels(project, cells) if order.compile else []

        def command_for(cell: str) -> list[str]:
            return _command_for_cell(order, cell, suite)

        results += _local_results(project, cells, options, engine, command_for, order.jobs)
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


def _pipeline_options(order: BuildOrder, suite: SuiteStep | None) -> PipelineOptions:
    return PipelineOptions(
        wheelhouse=wheelhouse.wheelhouse_folder(),
        locked=order.locked,
        prove=suite is not None,
        suite=suite.options if suite else SuiteOptions(),
        force_smoke=bool(suite and suite.again),
        record=order.record,
    )


def _dry_run_commands(
    order: BuildOrder, project: Project, cells: Sequence[Cell], options: PipelineOptions
) -> list[str]:
    commands = []
    if order.compile:
        wheel_orders, compile_options = _wheel_orders(project, cells)
        commands = compile_command.dry_run_wheel_commands(project, wheel_orders, compile_options)
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


def _local_results(  # noqa: PLR0913, PLR0917
    project: Project,
    cells: Sequence[Cell],
    options: PipelineOptions,
    engine: Engine,
    command_for: Callable[[str], list[str]],
    most_jobs: int | None,
) -> Iterator[CellResult]:
    """Yield the result of each cell when it is ready. Cells that build layers for others come first."""
    cell_pipeline = pipeline.Pipeline(project, options, engine)
    holdings, ordered = _survey_in_build_order(project, cells, options.wheelhouse, engine)
    tasks = [cell_tasks.task_for_cell(item, holdings, prove=options.prove) for item in ordered]
    cells_by_task = {item.cell: cell for item, cell in ordered.items()}
    jobs = min(most_jobs or task_crew.suggest_jobs(), len(tasks))
    count = itertools.count(1)

    def start_task(task: cell_tasks.BuildTask) -> task_crew.RunningTask:
        cell = cells_by_task[task.cell]
        if jobs > 1:
            return task_crew.TaskProcess(task.cell, command_for(str(cell)), project.root)
        number = f"[{next(count)}/{len(tasks)}] " if len(tasks) > 1 else ""
        with report_progress(f"{number}{cell}") as notify:
            return task_crew.FinishedTask(cell_pipeline.run(cell, notify))

    with contextlib.ExitStack() as stack:
        # With one job, the cell itself uses the live line of the terminal.
        notify = stack.enter_context(report_progress("queue")) if jobs > 1 else ignore_notes
        for result in task_crew.run_tasks(
            tasks, start_task, lambda: task_crew.measure_free_resources(engine), jobs=jobs, notify=notify
        ):
            if result.error:
                print(f"{result.cell}: {result.error}", file=sys.stderr)
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
    wheel_orders, options = _wheel_orders(project, cells)
    documents = compile_command.compile_wheels(project, wheel_orders, options) if wheel_orders else []
    failed = [item for item in documents if "error" in item]
    for item in failed:
        print(item["error"], file=sys.stderr)
    return [item["exit"] for item in failed]


def _wheel_orders(project: Project, cells: Sequence[Cell]) -> tuple[Sequence[WheelRequest], CompileOptions]:
    options = CompileOptions(wheelhouse=wheelhouse.wheelhouse_folder(), wheels=compile_command.find_wheel_list(project))
    return needed_wheels(cells, project.matrix), options


def _command_for_cell(order: BuildOrder, cell: str, suite: SuiteStep | None) -> list[str]:
    """Return the words of this command line for one cell, for a child process."""
    words = suite.command_words(cell) if suite else ["build", cell]
    words += ["--locked"] if order.locked else []
    words += ["--builder", order.builder] if order.builder else []
    return [*words, "--record"] if order.record else words


def _parse_jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cells from 1 to 64")
    return int(text)


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
