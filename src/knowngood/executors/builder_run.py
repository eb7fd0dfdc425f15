"""`knowngood build --builder`: builds the cells of a project on the builders that a user names."""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import KnowngoodError, failure_from_error
from knowngood.core.notify import Notify
from knowngood.engine.container_engine import Engine
from knowngood.executors import builder_discovery
from knowngood.executors.builder import Builder
from knowngood.executors.builder_commands import BuilderCommands
from knowngood.executors.builder_pipeline import BuilderPipeline
from knowngood.executors.builder_rounds import BuilderRounds
from knowngood.executors.shared_layers import BuilderBuild, plan_image_build, plan_layer_builds
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images import build_survey, task_crew
from knowngood.images.cell_tasks import MEMORY_TO_BUILD, MEMORY_TO_PROVE, CellResult, CellStatus
from knowngood.images.dockerfile import render_dockerfile
from knowngood.images.dry_run import RUN_FOLDER, dry_build_plan
from knowngood.images.pipeline import PipelineOptions
from knowngood.project.checkout import Project

MOST_TARGETS = 8
"""The most targets in one bake by default: when one of them fails, the others are cancelled."""
_MEMORY_SHARE = 0.9
"""The part of a machine's memory that builds may take."""


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
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends all builds early when it is set."""

    def pipeline(self, builder: Builder) -> BuilderPipeline:
        """Return the pipeline on one of the builders."""
        engine = builder_discovery.engine_from_builder(builder)
        return BuilderPipeline(
            self.project,
            self.options,
            engine,
            builder,
            registry=self.registry,
            network=self.network,
            prover=self.prover,
            stop=self.stop,
        )

    def build_cells(self, cells: Sequence[Cell], *, jobs: int | None, notify: Notify) -> Iterator[CellResult]:
        """Yield the result of each cell when it is ready.

        `jobs` is the most builds at once on each builder; by default it follows from the builder's memory.
        """
        line = self.pipeline(self.builders[0])
        builds: dict[str, BuilderBuild] = {}
        for cell in cells:
            try:
                locked_cell, _ = line.lock(cell, notify)
                plan = line.plan(locked_cell, notify)
            except (KnowngoodError, OSError) as error:
                failure = failure_from_error(error)
                yield CellResult(cell=str(cell), status=CellStatus.FAILED, seconds=0, error=failure)
                continue
            build = plan_image_build(cell, plan, plan.dockerfile.read_text(encoding="utf-8"))
            builds.setdefault(build.name, build)  # a twin may replace several cells
        room = {
            builder.name: builds_at_once(builder, self.builders, jobs, prove=self.options.prove)
            for builder in self.builders
        }
        pipelines = {builder.name: self.pipeline(builder) for builder in self.builders}
        rounds = BuilderRounds(builds.values(), room, pipelines, self.stop, notify)
        with contextlib.closing(rounds.results()) as results:
            yield from results

    def dry_run_commands(self, cells: Sequence[Cell]) -> list[str]:
        """Return the commands as if nothing was built before and one builder, the first one, did everything at once."""
        lines: list[str] = []
        line = self.pipeline(self.builders[0])
        builds = []
        for item in build_survey.survey_cells(self.project, cells, self.options.wheelhouse):
            problem = item.missing_wheel or item.lock_problem
            lines += [f"# {item.cell}: {problem}"] if problem else []
            if item.shape and not item.missing_wheel:
                plan = dry_build_plan(line, parse_cell(item.cell))
                text = render_dockerfile(plan.locked_cell, self.project.templates)
                builds.append(plan_image_build(parse_cell(item.cell), plan, text))
        commands, existing = line.commands(RUN_FOLDER), dict[str, str]()
        while len(self.builders) > 1 and (layers := plan_layer_builds(builds, existing)):
            lines.append(_describe_bake(commands, layers, existing))
            existing |= {tag: tag for build in layers for tag in build.tags}
        return [*lines, _describe_bake(commands, builds, existing)] if builds else lines


def _describe_bake(commands: BuilderCommands, builds: Sequence[BuilderBuild], existing: Mapping[str, str]) -> str:
    """Return the commands of one bake: those that write its files, and `buildx bake`."""
    lines = [
        f"# $KNOWNGOOD_TMP/Dockerfile.{build.name}: that of {build.plan.locked_cell.cell}, "
        f"and a last stage with only {build.layer_names}"
        for build in builds
        if build.keys
    ]
    for name, text in commands.bake_files(builds, existing, {}).items():
        if not name.startswith("Dockerfile."):
            lines.append(f"cat > {commands.folder / name} <<'END'\n{text}\nEND")
    return "\n".join([*lines, shlex.join(commands.bake())])


def builds_at_once(builder: Builder, builders: Sequence[Builder], jobs: int | None, *, prove: bool) -> int:
    """Return how many builds the memory of the builder's machine allows at once, at most `jobs`.

    Builders on one machine share its memory, on this machine with the suite if that runs (`prove`). If the memory is
    not known, `jobs` decides alone, and without it one build runs at a time.
    """
    sharing = max(1, sum(other.machine == builder.machine for other in builders))
    if builder.host.startswith("unix://"):
        free = task_crew.measure_free_resources(builder_discovery.engine_from_builder(builder))
        memory = free.memory - (MEMORY_TO_PROVE if prove else 0)
    elif builder.memory:
        memory = int(builder.memory * _MEMORY_SHARE)
    else:
        return jobs or 1
    return max(1, min(jobs or MOST_TARGETS, memory // sharing // MEMORY_TO_BUILD))


def choose_network(builders: Sequence[Builder]) -> str:
    """Return the network that all builders have: the host's network if one of them has no other."""
    return "default" if all(builder.has_bridge for builder in builders) else "host"


def describe_builders(builders: Sequence[Builder]) -> Iterator[str]:
    """Yield a line about each builder."""
    for builder in builders:
        memory = builder.memory
        size = f", {memory / 1e9:.0f} GB of memory, {builder.processors} processors" if memory else ""
        yield f"builder {builder.name}: {builder.driver} driver, BuildKit {builder.buildkit}{size}"
