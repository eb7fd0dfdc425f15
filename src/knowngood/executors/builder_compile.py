"""Compiling wheels on builders: each wheel is compiled in a step of a build.

The objects stay in a cache mount on the builder. Of several builders, each wheel gets one with enough free memory, and
the builders that can run the most compilers get the first wheels.
"""

from __future__ import annotations

import json
import shlex
import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from knowngood.base import base_image
from knowngood.core import local_files
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.executors import builder_commands, shared_layers
from knowngood.executors.builder import Builder
from knowngood.executors.builder_crew import BuilderCrew
from knowngood.executors.builder_pipeline import AddedStages, BuilderPipeline
from knowngood.executors.builder_run import BuilderRun
from knowngood.images import build_command
from knowngood.images.dry_run import RUN_FOLDER
from knowngood.wheels import compile_inside, compile_request
from knowngood.wheels.compile_request import CompileCapacity, CompileOutcome, CompilePlan, WheelRequest

WheelDocument = Mapping[str, Any]
"""What `knowngood compile --json` states about a wheel."""
CompileWheel = Callable[[Builder, WheelRequest, Notify], WheelDocument]
"""Compiles a wheel on a builder; raises `KnowngoodError`."""


@dataclass(frozen=True, kw_only=True)
class BuilderCompilePlace:
    """A builder as a place that compiles wheels."""

    pipeline: BuilderPipeline
    measure: bool = True
    """Whether a build measures what the builder has free; without it, only its known limits count."""

    @property
    def name(self) -> str:
        """The kind of builder, for the record of the wheel; it does not name the machine."""
        builder = self.pipeline.builder
        return f"builder ({builder.driver} driver), BuildKit {builder.buildkit}"

    def power(self, cell: Cell, notify: Notify) -> CompileCapacity:
        """Return what the builder has free, at most the limits that it was created with."""
        builder = self.pipeline.builder
        if not self.measure:
            return CompileCapacity(
                processors=builder.processors or 1, memory=builder.memory or compile_request.MEMORY_PER_JOB
            )
        measured = self._measure_capacity(cell, notify)
        if builder.is_engine:
            return measured
        return CompileCapacity(
            processors=min(measured.processors, builder.processors or measured.processors),
            memory=min(measured.memory, builder.memory or measured.memory),
        )

    def compile(self, planned: CompilePlan, notify: Notify) -> CompileOutcome:
        """Compile in a step of a build. If another run compiles the same on this builder, wait for it.

        Raises:
            BuilderLostError: the builder stopped answering.
            MissingError: the project's template has no stage to compile in.
        """
        host, name = planned.host, self.pipeline.builder.file_name
        pipeline = replace(self.pipeline, project=host.line.project, options=host.line.options)
        stage = builder_commands.COMPILE_HOST_STAGE
        if not shared_layers.has_stages(host.plan.dockerfile.read_text(encoding="utf-8"), {stage}):
            raise MissingError(
                f"{host.plan.dockerfile} has no stage {stage}, in which a builder would compile; "
                "compile on this machine's engine, or add that stage to the project's template"
            )
        pipeline.build_missing_layers(host.plan, notify)
        sources, out = _sources_folder(planned), planned.work / f"from-{name}"
        for folder in (sources, out):
            shutil.rmtree(folder, ignore_errors=True)
        planned.sdist.unpack(sources / "src")
        shutil.copyfile(compile_inside.__file__, sources / "inside.py")
        log = planned.work / "logs" / f"{name}.log"
        pipeline.export_files(host.plan, _compile_stages(planned), out, log, notify)
        path = out / "result.json"
        result = json.loads(path.read_text()) if path.exists() else {}
        return CompileOutcome(folder=out, code=0, out_of_memory=False, result=result)

    def command(self, planned: CompilePlan) -> list[str]:
        """Return the command of the build, and a comment that describes its Dockerfile."""
        host, stages = planned.host, _compile_stages(planned)
        derived = replace(
            host.plan, dockerfile=RUN_FOLDER / "Dockerfile", contexts={**host.plan.contexts, **stages.contexts}
        )
        commands = self.pipeline.commands(RUN_FOLDER)
        argv = commands.export_files(derived, stages.target, "$RANDOM", RUN_FOLDER / "out", ())
        comment = (
            f"# $KNOWNGOOD_TMP/Dockerfile: that of {host.locked.cell}, and a stage that compiles, {planned.jobs} jobs"
        )
        return [comment, shlex.join(argv)]

    def _measure_capacity(self, cell: Cell, notify: Notify) -> CompileCapacity:
        project, name = self.pipeline.project, self.pipeline.builder.file_name
        base = base_image.prepare_base(project, project.matrix.entry(cell).base, locked=False, notify=notify)
        log = local_files.cache_folder() / "logs" / "capacity" / name / "build.log"
        with local_files.scratch_folder() as folder:
            dockerfile, out = folder / "Dockerfile", folder / "out"
            dockerfile.write_text(builder_commands.CAPACITY_DOCKERFILE, encoding="utf-8")
            plan = build_command.BuildPlan(
                tag="", dockerfile=dockerfile, context=out, contexts={"base": base}, inputs="none"
            )
            out.mkdir()
            commands = self.pipeline.commands(folder)
            argv = commands.export_files(plan, builder_commands.CAPACITY_STAGE, uuid.uuid4().hex, out, ())
            self.pipeline.run_build(argv, log, lambda _: None)
            return builder_commands.parse_capacity((out / "meminfo").read_text(), (out / "nproc").read_text())


def _sources_folder(planned: CompilePlan) -> Path:
    return planned.work / "order"


def _compile_stages(planned: CompilePlan) -> AddedStages:
    contexts = {
        builder_commands.SOURCES_CONTEXT: _sources_folder(planned),
        builder_commands.TOOLKIT_CONTEXT: planned.toolkit,
        builder_commands.TOOLS_CONTEXT: planned.tools,
    }
    return AddedStages(
        text=builder_commands.render_compile_stages(planned.name, planned.env),
        target=builder_commands.WHEEL_STAGE,
        contexts={name: str(folder) for name, folder in contexts.items()},
    )


def compile_on_builders(
    run: BuilderRun,
    requests: Sequence[WheelRequest],
    compile_wheel: CompileWheel,
    memory_each: int,
    notify: Notify,
) -> list[WheelDocument]:
    """Return the document of each requested wheel, in the order of the requests.

    A wheel that several cells can use is compiled once. A machine compiles one wheel at a time, with all of its
    processors. A wheel whose builder is lost, or lacks something, goes to another builder. `memory_each` is the memory
    in bytes that one compiler needs at least.

    Raises:
        MissingError: no builder reports its free memory.
    """
    capacities = _measure_capacities(run, requests[0].cell, notify)
    groups: dict[tuple[str, ...], list[WheelRequest]] = defaultdict(list)
    for request in requests:
        cell = request.cell
        base = run.project.matrix.entry(cell).base
        groups[(request.package, request.version, cell.gpu, cell.cuda, cell.torch, cell.python, base)].append(request)

    wheels = [_Wheel(requests=tuple(group)) for group in groups.values()]

    def parallel_compilers(builder: Builder) -> int:
        capacity = capacities[builder.name]
        return compile_request.jobs_that_fit(capacity.processors, capacity.memory, memory_each)

    builders = [builder for builder in run.builders if builder.name in capacities]
    crew: BuilderCrew[_Wheel, WheelDocument] = BuilderCrew(
        sorted(builders, key=parallel_compilers, reverse=True), run.stop, notify
    )

    def take(builder: Builder) -> Sequence[_Wheel]:
        enough = [one for one in crew.builders if capacities[one.name].memory >= memory_each]
        machines = [one.machine for one, _ in crew.running.values()]
        if builder.machine in machines or (enough and builder not in enough):
            return ()
        return [wheel for wheel in wheels if crew.may_do(builder, wheel.name)][:1]

    def compile_first(builder: Builder, work: Sequence[_Wheel]) -> WheelDocument:
        (wheel,) = work
        notify(f"{wheel.name} goes to {builder.name}")
        return compile_wheel(builder, wheel.requests[0], lambda step: notify(f"on {builder.name}: {step}"))

    documents: dict[WheelRequest, WheelDocument] = {}
    for _, (wheel,), document in crew.run(take, compile_first):
        first = {**document, "note": "; ".join(filter(None, [document["note"], *crew.notes[wheel.name]]))}
        present = {**first, "status": str(compile_request.WheelStatus.PRESENT), "seconds": 0.0}
        documents |= {request: {**present, "cell": str(request.cell)} for request in wheel.requests}
        documents[wheel.requests[0]] = first
    for wheel in [wheel for wheel in wheels if wheel.name not in crew.done]:
        error = crew.final_failure(wheel.name) or next(reversed(crew.failures[wheel.name].values()))
        documents |= {request: compile_request.failed_wheel_document(request, error) for request in wheel.requests}
    return [documents[request] for request in requests]


@dataclass(frozen=True, kw_only=True)
class _Wheel:
    """A wheel, with all requests that it serves; it is compiled for the first one."""

    requests: tuple[WheelRequest, ...]

    @property
    def name(self) -> str:
        first = self.requests[0]
        return f"{first.package} {first.version} for {first.cell}"


def _measure_capacities(run: BuilderRun, cell: Cell, notify: Notify) -> dict[str, CompileCapacity]:
    """Return what each builder has free, by its name, without the builders that do not report it."""

    def measure(builder: Builder) -> CompileCapacity | KnowngoodError:
        try:
            return BuilderCompilePlace(pipeline=run.pipeline(builder)).power(cell, notify)
        except KnowngoodError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip((builder.name for builder in run.builders), pool.map(measure, run.builders), strict=True))
    capacities = {}
    for name, answer in answers.items():
        if isinstance(answer, CompileCapacity):
            notify(f"builder {name} has {answer.memory / 1e9:.1f} GB free, {answer.processors} processors")
            capacities[name] = answer
        else:
            notify(f"builder {name} is left out: {answer}")
    if not capacities:
        raise MissingError(f"no builder reports its free memory: {next(iter(answers.values()))}")
    return capacities
