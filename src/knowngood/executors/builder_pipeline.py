"""The pipeline of cells on one builder: its images and layers go to the shared registry, and are read from there."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from knowngood.core import image_record, local_files
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.image_record import ImageRecord
from knowngood.core.notify import Notify
from knowngood.engine import container_engine, image_store
from knowngood.engine.container_engine import Engine
from knowngood.evidence.run_evidence import Evidence
from knowngood.executors import builder_commands, builder_discovery
from knowngood.executors.builder import Builder
from knowngood.executors.builder_commands import BuilderCommands
from knowngood.executors.builder_crew import BuilderLostError
from knowngood.executors.shared_layers import (
    BuilderBuild,
    assign_new_layers,
    choose_cache_tags,
    image_inputs_tag,
    is_foundation,
    layer_cache_tag,
    plan_image_build,
)
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images import bake_file, image_build
from knowngood.images.build_command import CellBuildPlan, Image, ParseStep, parse_build_step
from knowngood.images.cell_ownership import CellHeldError, hold_cell
from knowngood.images.pipeline import Pipeline

_ANSWER_CHECK_SECONDS = 10.0
"""Seconds between two checks of whether a builder still answers."""
_MISSED_ANSWERS = 3
"""After so many missed answers in a row, a builder counts as lost."""


@dataclass(frozen=True, kw_only=True)
class BakeProduct:
    """What a bake left behind; a build that is in neither of both was cancelled."""

    failures: Mapping[str, KnowngoodError] = field(default_factory=dict)
    """The builds that failed, by name."""
    built: Mapping[str, bool] = field(default_factory=dict)
    """The builds that are in the registry, and whether this bake made them."""
    seconds: float = 0.0


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
    built: bool = False
    """Whether this run has built the images that the pipeline finds."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends a build early when it is set."""

    def image(self, build_plan: CellBuildPlan, notify: Notify) -> Image:
        """Return the plan's image in the registry, whichever builder made it, with its record."""
        image = super().image(build_plan, notify)
        if image.built:
            self._tag_local_image(image, build_plan.locked_cell.cell, notify)
        return image

    def find_image(self, build_plan: CellBuildPlan) -> Image:
        """Return the plan's image, which `bake` has built; raises `KnowngoodError` if the registry lost it."""
        image = self.registry.find_image(build_plan.inputs)
        if image is None:
            raise KnowngoodError(f"the registry lost the image {image_inputs_tag(build_plan.inputs)}; run it again")
        return replace(image, built=self.built)

    def bake(self, builds: Sequence[BuilderBuild], notify: Notify) -> BakeProduct:
        """Build images or layers in one bake. Images are pushed, and their new layers are left in caches."""
        failures: dict[str, KnowngoodError] = {}
        with contextlib.ExitStack() as stack:
            for build in sorted(builds, key=lambda build: build.name):  # in one order: no two runs wait in a circle
                try:
                    wait = self.options.wait or bool(build.keys)
                    stack.enter_context(hold_cell(build.name, wait=wait, notify=notify))
                except CellHeldError as error:
                    failures[build.name] = error
            held = [build for build in builds if build.name not in failures]
            earlier = self.registry.find_built(held)  # another run may have built some in the meantime
            if missing := [build for build in held if build.name not in earlier]:
                failures |= self._bake_missing(missing, notify)
            return BakeProduct(
                failures=failures, built={name: name not in earlier for name in self.registry.find_built(held)}
            )

    def _bake_missing(self, builds: Sequence[BuilderBuild], notify: Notify) -> dict[str, KnowngoodError]:
        """Run the bake, and return the builds that failed, by name: all if its output does not name one of them."""
        names = {bake_file.dotless_name(build.name): build.name for build in builds}
        existing = self.registry.find_caches(builds)
        log = local_files.cache_folder() / "logs" / builds[0].name / f"build-{self.builder.file_name}.log"
        log.unlink(missing_ok=True)
        with local_files.scratch_folder() as folder:
            commands = self.commands(folder)

            def run(secrets: Mapping[str, Path]) -> None:
                for name, text in commands.bake_files(builds, existing, secrets).items():
                    (folder / name).write_text(text, encoding="utf-8")
                self.run_build(commands.bake(), log, notify)

            try:
                distributions = {item for build in builds for item in build.plan.locked_cell.distributions}
                image_build.work_with_secrets(run, distributions, notify)
            except BuilderLostError:
                raise
            except KnowngoodError as error:
                target = bake_file.parse_failed_target(log.read_text(encoding="utf-8")) if log.exists() else None
                return dict.fromkeys([names[target]] if target in names else names.values(), error)
            metadata = json.loads(commands.metadata.read_text(encoding="utf-8"))
        new_layers, failures = assign_new_layers(builds, existing), {}
        for target, build in zip(names, builds, strict=True):
            try:
                if not build.keys:
                    self.registry.tag_pushed_image(build.plan.inputs, str(metadata[target]["containerimage.digest"]))
                self.registry.tag_cache(new_layers[build.name])
            except KnowngoodError as error:
                failures[build.name] = error
        return failures

    def build_missing_layers(self, plan: CellBuildPlan, notify: Notify) -> None:
        """Build those layers of a cell that are not in the registry's cache, the foundation first."""
        image = plan_image_build(plan.locked_cell.cell, plan, plan.dockerfile.read_text(encoding="utf-8"))
        existing = self.registry.find_caches([image])
        missing = [key for key in image.layers if layer_cache_tag(key) not in existing]
        for foundation in (True, False):
            if keys := tuple(key for key in missing if is_foundation(key) is foundation):
                for error in self.bake([replace(image, keys=keys)], notify).failures.values():
                    raise error

    def export_files(self, plan: CellBuildPlan, stages: AddedStages, out: Path, log: Path, notify: Notify) -> None:
        """Build stages after those of a cell's Dockerfile, and write the files of their target to the folder `out`."""
        dockerfile = plan.dockerfile.read_text(encoding="utf-8")
        image = plan_image_build(plan.locked_cell.cell, plan, dockerfile)
        caches = choose_cache_tags(image.layers, self.registry.find_caches([image]))

        def build(secrets: Mapping[str, Path]) -> None:
            contexts = {**plan.contexts, **stages.contexts}
            with local_files.scratch_folder() as folder:
                derived = replace(plan, dockerfile=folder / "Dockerfile", contexts=contexts, secrets=secrets)
                derived.dockerfile.write_text(f"{dockerfile}\n{stages.text}", encoding="utf-8")
                argv = self.commands(folder).export_files(derived, stages.target, uuid.uuid4().hex, out, caches)
                self.run_build(argv, log, notify, builder_commands.parse_compile_step)

        image_build.work_with_secrets(build, plan.locked_cell.distributions, notify)

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
        notify(f"pulling {repository}@{image.digest[:19]}")
        pulled = replace(image, tag=f"knowngood:{cell}")
        image_store.pull_image(self.prover, repository, image.digest, pulled.tag)
        return Pipeline.prove(replace(self, engine=self.prover), cell, pulled, earlier, notify)

    def commands(self, folder: Path) -> BuilderCommands:
        """Return the commands for the builder; their files are in `folder`."""
        return BuilderCommands(
            builder=self.builder, repository=self.registry.client.repository, network=self.network, folder=folder
        )

    def run_build(
        self, argv: Sequence[str], log: Path, notify: Notify, parse_step: ParseStep = parse_build_step
    ) -> None:
        """Run a build on the builder, which is asked every ten seconds whether it still answers.

        Raises:
            BuilderLostError: the build failed, and the builder does not answer.
        """
        env = {**os.environ, **self.builder.env, **builder_commands.BAKE_ENVIRONMENT}
        check = _AnswerCheck(self.builder, self.stop)
        run_buildx = functools.partial(
            image_build.run_buildx,
            argv,
            env,
            log=log,
            notify=notify,
            parse_step=parse_step,
            should_stop=check.should_stop,
        )
        try:
            with local_files.lock_folder(log.parent):
                image_build.retry_collected(run_buildx, notify)
        except KnowngoodError as error:
            if builder_discovery.builder_answers(self.builder):
                raise
            raise BuilderLostError(f"builder {self.builder.name} was lost during the build: {error}") from None

    def _tag_local_image(self, image: Image, cell: Cell, notify: Notify) -> None:
        """Give an image that this machine's engine has built the same tag as a build without `--builder` does."""
        engine = container_engine.find_running_engine()
        if engine is None or engine.host != self.builder.host:
            return
        with contextlib.suppress(KnowngoodError), container_engine.docker_client(engine) as client:
            client.images.get(image.tag).tag("knowngood", str(cell))
            notify(f"loaded as knowngood:{cell}")


class _AnswerCheck:
    """Decides during a build whether it is to be stopped: the run ends, or the builder no longer answers."""

    def __init__(self, builder: Builder, stop: threading.Event) -> None:
        self._builder, self._stop = builder, stop
        self._last, self._missed = time.monotonic(), 0

    def should_stop(self) -> bool:
        if not self._stop.is_set() and time.monotonic() > self._last + _ANSWER_CHECK_SECONDS:
            self._missed = 0 if builder_discovery.builder_answers(self._builder) else self._missed + 1
            self._last = time.monotonic()
        return self._stop.is_set() or self._missed >= _MISSED_ANSWERS
