"""The pipeline of a cell on one builder: its images and layers go to the shared registry, and are read from there."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood.core import image_record, local_files
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.image_record import ImageRecord
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.engine.container_engine import Engine
from knowngood.evidence.run_evidence import Evidence
from knowngood.executors import builder_commands, builder_discovery
from knowngood.executors.builder import Builder
from knowngood.executors.builder_commands import BuilderCommands
from knowngood.executors.shared_layers import image_inputs_tag, layer_cache_tag, shareable_keys
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images import cell_ownership, image_build, pipeline
from knowngood.images.build_command import CellBuildPlan, Image, ParseStep, parse_build_step
from knowngood.images.matrix_plan import LayerKey, PlanInput
from knowngood.images.pipeline import Pipeline


class BuilderLostError(MissingError):
    """The builder stopped answering (exit 4)."""


@dataclass(frozen=True, kw_only=True)
class AddedStages:
    """Stages that are appended to a cell's Dockerfile."""

    text: str
    target: str
    """The stage that is built."""
    contexts: Mapping[str, str]
    """The build contexts that they need besides the cell's."""


@dataclass(frozen=True)
class BuilderPipeline(Pipeline):
    """The steps on a builder; `engine` is the same builder, for functions that query an engine."""

    builder: Builder
    registry: SharedRegistry
    network: str
    """The network of build steps: the same on all builders, because it is a part of BuildKit's cache key."""
    prover: Engine | None = None
    """The engine that runs the suite."""

    def find_image(self, build_plan: CellBuildPlan) -> Image | None:
        """Return the plan's image in the registry, whichever builder made it."""
        return self.registry.find_image(build_plan.inputs)

    def build_image(self, build_plan: CellBuildPlan, notify: Notify) -> Image:
        """Build the plan's image and push it; other cells can use its new layers afterwards."""
        cell = build_plan.locked_cell.cell
        keys = _layer_keys(build_plan)
        new_keys = self._missing_layers(keys)
        cache_tag = layer_cache_tag(new_keys[0]) if new_keys else None
        with local_files.scratch_folder() as folder:
            commands = self.commands(self.registry.cache_sources(keys), folder)
            argv = commands.build_image(build_plan, image_inputs_tag(build_plan.inputs), cache_tag)
            self.run_build(argv, pipeline.cell_log_path(cell, f"build-{self.builder.file_name}"), notify)
            metadata = json.loads(commands.metadata.read_text(encoding="utf-8"))
        image = self.registry.tag_pushed_image(build_plan.inputs, str(metadata["containerimage.digest"]))
        self.registry.tag_cache(new_keys)
        self._tag_local_image(image, cell, notify)
        return image

    def build_layers(self, cell: Cell, names: Sequence[str], notify: Notify) -> None:
        """Build these layers of a cell into the registry's cache."""
        locked_cell, _ = self.lock(cell, notify)
        plan = self.plan(locked_cell, notify)
        keys = {key[0]: key for key in _layer_keys(plan)}
        if unknown := [name for name in names if name not in keys]:
            raise KnowngoodError(
                f"{locked_cell.cell} has no layer {', '.join(unknown)}; its lock has changed: run it again"
            )
        self._build_into_cache(plan, [keys[name] for name in names], notify)

    def build_missing_layers(self, plan: CellBuildPlan, notify: Notify) -> None:
        """Build those layers of a cell that are not in the registry's cache, the foundation first."""
        keys = _layer_keys(plan)
        foundation = [key for key in keys if builder_commands.is_foundation_layer(key[0])]
        for part in (foundation, [key for key in keys if key not in foundation]):
            self._build_into_cache(plan, self._missing_layers(part), notify)

    def export_files(self, plan: CellBuildPlan, stages: AddedStages, out: Path, log: Path, notify: Notify) -> None:
        """Build stages after those of a cell's Dockerfile, and write the files of their target to the folder `out`."""

        def build(plan_with_secrets: CellBuildPlan) -> None:
            text = f"{plan.dockerfile.read_text(encoding='utf-8')}\n{stages.text}"
            contexts = {**plan.contexts, **stages.contexts}
            with local_files.scratch_folder() as folder:
                derived = replace(plan_with_secrets, dockerfile=_write_dockerfile(folder, text), contexts=contexts)
                commands = self.commands(self.registry.cache_sources(_layer_keys(plan)), folder)
                argv = commands.export_files(derived, stages.target, uuid.uuid4().hex, out)
                self.run_build(argv, log, notify, builder_commands.parse_compile_step)

        image_build.work_with_secrets(plan, build, notify)

    def _missing_layers(self, keys: Sequence[LayerKey]) -> list[LayerKey]:
        caches = self.registry.find_caches(keys)
        return [key for key in keys if layer_cache_tag(key) not in caches]

    def _build_into_cache(self, plan: CellBuildPlan, keys: Sequence[LayerKey], notify: Notify) -> None:
        if not keys:
            return
        with cell_ownership.hold_cell(layer_cache_tag(keys[0]), wait=True, notify=notify):
            if len(self.registry.find_caches(keys)) == len(keys):  # another run has built them
                return
            image_build.work_with_secrets(
                plan, lambda with_secrets: self._run_layers(with_secrets, keys, notify), notify
            )
            self.registry.tag_cache(keys)

    def _run_layers(self, plan: CellBuildPlan, keys: Sequence[LayerKey], notify: Notify) -> None:
        names = [name for name, _ in keys]
        stage_names = {layer.name: builder_commands.layer_stage_name(layer) for layer in plan.locked_cell.layers}
        stages = [stage_names.get(name, name.partition("-")[0]) for name in names]
        text = builder_commands.render_layers_dockerfile(plan.dockerfile.read_text(encoding="utf-8"), stages)
        with local_files.scratch_folder() as folder:
            derived = replace(plan, dockerfile=_write_dockerfile(folder, text))
            commands = self.commands(self.registry.cache_sources(_layer_keys(plan)), folder)
            argv = commands.build_layers(
                derived, layer_cache_tag(keys[0]), foundation=builder_commands.VENV_STAGE in names
            )
            log = local_files.cache_folder() / "logs" / f"layer-{names[0]}" / f"build-{self.builder.file_name}.log"
            self.run_build(argv, log, notify)

    def take_record(self, image: Image, build_plan: CellBuildPlan) -> ImageRecord:
        """Return the record of an image in the registry."""
        locked_cell, shape = build_plan.locked_cell, build_plan.shape
        builder = self.builder
        tools = {"uv": shape.uv, "buildkit": builder.buildkit, "engine": builder.version or builder.driver}
        names = tuple(layer.name for layer in locked_cell.layers)
        manifest = self.registry.read_manifest(image.digest)
        return image_record.image_record_from_manifest(str(locked_cell.cell), shape, names, manifest, tools)

    def prove(
        self, cell: Cell, image: Image, earlier: Sequence[Evidence], notify: Notify
    ) -> tuple[Path | None, Evidence]:
        """Pull the image to this machine's engine, and run the suite in it."""
        if self.prover is None:
            raise MissingError(f"{cell}: there is no engine to run its image on; `knowngood engine up` starts one")
        repository = str(self.registry.client.repository)
        with container_engine.docker_client(self.prover) as client:
            notify(f"pulling {repository}@{image.digest[:19]}")
            client.images.pull(repository, tag=image.digest).tag("knowngood", str(cell))
        pulled = replace(image, tag=f"knowngood:{cell}")
        return Pipeline.prove(replace(self, engine=self.prover), cell, pulled, earlier, notify)

    def commands(self, caches: Sequence[str], folder: Path) -> BuilderCommands:
        """Return the commands for the builder, which read from these caches; buildx writes its metadata to `folder`."""
        return BuilderCommands(
            builder=self.builder,
            repository=self.registry.client.repository,
            network=self.network,
            caches=caches,
            metadata=folder / "metadata.json",
        )

    def run_build(
        self, argv: Sequence[str], log: Path, notify: Notify, parse_step: ParseStep = parse_build_step
    ) -> None:
        """Run a build on the builder.

        Raises:
            BuilderLostError: the build failed, and the builder does not answer.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, **self.builder.env}
        try:
            image_build.run_buildx(argv, env, log=log, notify=notify, parse_step=parse_step)
        except KnowngoodError as error:
            if builder_discovery.builder_answers(self.builder):
                raise
            raise BuilderLostError(f"builder {self.builder.name} was lost during the build: {error}") from None

    def _tag_local_image(self, image: Image, cell: Cell, notify: Notify) -> None:
        """Give an image that this machine's engine has built the same tag as a build without `--builder` does."""
        system = container_engine.find_system_engine()
        engine = system if isinstance(system, Engine) else container_engine.find_embedded_engine()
        if engine is None or engine.host != self.builder.host:
            return
        with contextlib.suppress(KnowngoodError), container_engine.docker_client(engine) as client:
            client.images.get(image.tag).tag("knowngood", str(cell))
            notify(f"loaded as knowngood:{cell}")


def _write_dockerfile(folder: Path, text: str) -> Path:
    path = folder / "Dockerfile"
    path.write_text(text, encoding="utf-8")
    return path


def _layer_keys(plan: CellBuildPlan) -> tuple[LayerKey, ...]:
    """Return the layers of a cell that builders can share: none, if a project's own template has other stages."""
    text = plan.dockerfile.read_text(encoding="utf-8")
    if not builder_commands.has_stages(text, (builder_commands.VENV_STAGE, builder_commands.SUITE_STAGE)):
        return ()
    locked_cell = plan.locked_cell
    return shareable_keys(PlanInput(cell=str(locked_cell.cell), layers=locked_cell.layers, shape=plan.shape))
