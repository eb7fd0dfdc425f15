"""`knowngood build --builder`: builds the cells of a project on the builders that a user names."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.notify import Notify
from knowngood.engine.container_engine import Engine
from knowngood.executors import builder_commands, builder_discovery
from knowngood.executors.builder import Builder
from knowngood.executors.builder_pipeline import BuilderPipeline
from knowngood.executors.builder_scheduler import BuilderScheduler, SchedulerActions
from knowngood.executors.shared_layers import (
    image_inputs_tag,
    layer_cache_tag,
    plan_early_layers,
    plan_shared_layers,
    shareable_keys,
    task_after_layers,
)
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images import build_survey, matrix_plan, task_crew
from knowngood.images.cell_tasks import BuildTask, CellResult, CellStatus, MachineResources
from knowngood.images.dockerfile import render_dockerfile
from knowngood.images.dry_run import RUN_FOLDER, dry_build_plan
from knowngood.images.matrix_plan import Holdings, LayerKey, PlanInput
from knowngood.images.pipeline import PipelineOptions
from knowngood.project.checkout import Project

UNKNOWN_BYTES = 10**15
"""The bytes of memory or disk to assume where the amount is not known."""
_MEMORY_SHARE = 0.9
"""The part of a machine's memory that builds may take."""

TaskCommand = Callable[[Builder, Cell, Sequence[str]], Sequence[str]]
"""Gives the words of the command line that builds a cell, or the named layers of it, on a builder."""


@dataclass(frozen=True, kw_only=True)
class BuilderRun:
    """A run of a project's cells on some builders."""

    project: Project
    options: PipelineOptions
    builders: tuple[Builder, ...]
    registry: SharedRegistry
    network: str
    """The network of build steps."""
    prover: Engine | None
    """The engine that runs the suite; `None` for a run that only builds."""

    def pipeline(self, builder: Builder) -> BuilderPipeline:
        """Return the pipeline on one of the builders."""
        engine = builder_discovery.engine_from_builder(builder)
        return BuilderPipeline(self.project, self.options, engine, builder, self.registry, self.network, self.prover)

    def build_cells(
        self, cells: Sequence[Cell], command_for: TaskCommand, *, jobs: int | None, notify: Notify
    ) -> Iterator[CellResult]:
        """Yield the result of each cell when it is ready. Each task runs in a process of its own.

        `jobs` is the number of tasks at once on each builder; by default it follows from the builder's processors.
        """
        cell_of = build_survey.survey_cells(self.project, cells, self.options.wheelhouse)
        local = build_survey.survey_holdings(self.project, None)
        holdings = self.registry.find_holdings(list(cell_of), local)
        inputs = matrix_plan.order_cells(list(cell_of), holdings)
        shared_jobs = plan_shared_layers(inputs, holdings, self._has_layer_stages)
        shared = frozenset(key for job in shared_jobs for key in job.keys)
        early_jobs = plan_early_layers(inputs, holdings, shared, self._has_layer_stages)
        cell_tasks = {task_after_layers(item, holdings, shared, prove=self.options.prove): item for item in inputs}
        layer_tasks = {job.task: job for job in (*shared_jobs, *early_jobs)}
        cell_named = {item.cell: cell for item, cell in cell_of.items()}

        def start_task(task: BuildTask, builder: Builder) -> task_crew.RunningTask:
            if job := layer_tasks.get(task):
                argv = command_for(builder, cell_named[job.cell], job.names)
                return task_crew.TaskProcess(task.cell, argv, self.project.root)
            item = cell_tasks[task]
            cell = cell_of[item]
            exists = item.shape is not None and item.shape.inputs in holdings.images
            if exists and not self.options.prove:  # so quick that it needs no process
                return task_crew.FinishedTask(self.pipeline(builder).run(cell, notify))
            return task_crew.TaskProcess(task.cell, command_for(builder, cell, ()), self.project.root)

        actions = SchedulerActions(
            start=start_task, free=free_resources, answers=builder_discovery.builder_answers, notify=notify
        )
        builders = [(builder, jobs or task_crew.suggest_jobs(builder.processors or 1)) for builder in self.builders]
        if shared_jobs:
            count = sum(len(job.names) for job in shared_jobs)
            layers = f"{count} layers are" if count > 1 else "1 layer is"
            notify(f"{layers} in several cells, and built once before them")
        tasks = [*(job.task for job in shared_jobs), *cell_tasks]
        early_tasks = [job.task for job in early_jobs]
        return BuilderScheduler(tasks, layer_tasks, builders, actions, early_tasks).results()

    def dry_run_commands(self, cells: Sequence[Cell]) -> list[str]:
        """Return the commands for the first builder, as if nothing was built before; other builders get the same."""
        inputs = matrix_plan.order_cells(
            list(build_survey.survey_cells(self.project, cells, self.options.wheelhouse)), Holdings()
        )
        shared_jobs = plan_shared_layers(inputs, Holdings(), self._has_layer_stages)
        shared = {key for job in shared_jobs for key in job.keys}
        pipeline = self.pipeline(self.builders[0])
        lines = []

        def commands_with(caches: Sequence[LayerKey]) -> builder_commands.BuilderCommands:
            return pipeline.commands([layer_cache_tag(key) for key in caches], RUN_FOLDER)

        for job in shared_jobs:
            names = ", ".join(job.names)
            lines.append(f"# $KNOWNGOOD_TMP/Dockerfile: that of {job.cell}, and a last stage with only {names}")
            plan = replace(dry_build_plan(pipeline, parse_cell(job.cell)), dockerfile=RUN_FOLDER / "Dockerfile")
            commands = commands_with(sorted(job.after))
            argv = commands.build_layers(plan, layer_cache_tag(job.keys[0]), foundation=not job.after)
            lines.append(shlex.join(argv))
        for item in inputs:
            problem = item.missing_wheel or item.lock_problem
            lines.append(f"# {item.cell}: {problem}" if problem else f"# {item.cell}")
            if item.shape and not item.missing_wheel:
                cell_plan = dry_build_plan(pipeline, parse_cell(item.cell))
                keys = shareable_keys(item)
                own = [key for key in keys if key not in shared]
                commands = commands_with([key for key in keys if key in shared])
                cache_tag = layer_cache_tag(own[0]) if own else None
                lines.append(shlex.join(commands.build_image(cell_plan, image_inputs_tag(cell_plan.inputs), cache_tag)))
        return lines

    def build_layers(self, cell: Cell, names: Sequence[str], notify: Notify) -> CellResult:
        """Build these layers of a cell on the first builder."""
        start, error = time.monotonic(), None
        try:
            self.pipeline(self.builders[0]).build_layers(cell, names, notify)
        except KnowngoodError as failure:
            error = failure
        status = CellStatus.FAILED if error else CellStatus.BUILT
        return CellResult(cell=str(cell), status=status, seconds=time.monotonic() - start, error=error)

    def _has_layer_stages(self, item: PlanInput) -> bool:
        locked_cell = self.project.tree.load(parse_cell(item.cell))
        if locked_cell is None:
            return False
        stages = {builder_commands.VENV_STAGE, builder_commands.SUITE_STAGE}
        stages |= set(map(builder_commands.layer_stage_name, locked_cell.layers))
        return builder_commands.has_stages(render_dockerfile(locked_cell, self.project.templates), stages)


def free_resources(builder: Builder) -> MachineResources:
    """Return what the builder's machine has left: memory and disk of this machine, the total memory of another one."""
    if builder.host.startswith("unix://"):
        return task_crew.measure_free_resources(builder_discovery.engine_from_builder(builder))
    memory = int(builder.memory * _MEMORY_SHARE) if builder.memory else UNKNOWN_BYTES
    return MachineResources(memory=memory, disk=UNKNOWN_BYTES)


def choose_network(builders: Sequence[Builder]) -> str:
    """Return the network that all builders have: the host's network if one of them has no other."""
    return "default" if all(builder.has_bridge for builder in builders) else "host"


def describe_builders(builders: Sequence[Builder]) -> Iterator[str]:
    """Yield a line about each builder."""
    for builder in builders:
        memory = builder.memory
        size = f", {memory / 1e9:.0f} GB of memory, {builder.processors} processors" if memory else ""
        yield f"builder {builder.name}: {builder.driver} driver, BuildKit {builder.buildkit}{size}"
