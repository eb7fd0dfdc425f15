"""Rounds of bakes: in each round, what is missing is divided over the builders that still answer.

The registry is the state. A round asks it what exists, and builds what has to come first: the foundation, then the
layers that several cells have, then the cells. What a round leaves undone is work of the next one: a builder was lost,
lacked something, or cancelled it when another build of the same bake failed. Every round finishes a build, counts a
failure, or loses a builder, so the rounds come to an end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from knowngood.core.errors import KnowngoodError
from knowngood.core.notify import Notify
from knowngood.executors.builder import Builder
from knowngood.executors.builder_crew import BuilderCrew
from knowngood.executors.builder_pipeline import BakeProduct, BuilderPipeline
from knowngood.executors.shared_layers import BuilderBuild, divide_builds, plan_layer_builds
from knowngood.images.cell_tasks import CellResult, CellStatus


class BuilderRounds:
    """The state of one run: which cells have no image yet, and the builders that still answer."""

    def __init__(
        self,
        cells: Iterable[BuilderBuild],
        room: Mapping[str, int],
        pipelines: Mapping[str, BuilderPipeline],
        stop: threading.Event,
        notify: Notify,
    ) -> None:
        """Prepare to build the cells. `room` states how many builds each builder can do at once, by its name."""
        self._left = {cell.name: cell for cell in cells}
        self._room, self._pipelines, self._notify = room, pipelines, notify
        builders = [pipeline.builder for pipeline in pipelines.values()]
        self._crew: BuilderCrew[BuilderBuild, BakeProduct] = BuilderCrew(builders, stop, notify)
        self._registry = pipelines[builders[0].name].registry

    def results(self) -> Generator[CellResult]:
        """Yield the result of each cell when it is ready. All bakes end with the caller."""
        present = [self._left.pop(name) for name in self._registry.find_built(self._left.values())]
        while self._left:
            builds = self._next_builds()
            if failed := [(build, error) for build in builds if (error := self._crew.final_failure(build.name))]:
                for build, error in failed:
                    yield from self._give_up(build, error)
                continue
            with contextlib.closing(self._run_round(builds)) as results:
                yield from results
        for cell in present:  # last, because the suite may run in them
            yield self._finish(cell, next(iter(self._pipelines.values())))

    def _next_builds(self) -> Sequence[BuilderBuild]:
        """Return what has to be built next: layers that several cells need, otherwise the cells."""
        cells = list(self._left.values())
        if len(self._crew.builders) < 2:  # one builder has all of its layers in its own cache
            return cells
        return plan_layer_builds(cells, self._registry.find_caches(cells)) or cells

    def _run_round(self, builds: Sequence[BuilderBuild]) -> Generator[CellResult]:
        """Divide the builds over the builders, run their bakes, and yield the results of the cells that are built."""
        room = {builder.name: self._room[builder.name] for builder in self._crew.builders}
        bakes = {name: iter(share) for name, share in divide_builds(builds, room, self._crew.failures).items()}

        def take(builder: Builder) -> Sequence[BuilderBuild] | None:
            return next(bakes[builder.name], None)

        with contextlib.closing(self._crew.run(take, self._bake)) as products:
            for builder, _, product in products:
                for name, error in product.failures.items():
                    self._crew.failures[name][builder.name] = error
                for name in product.built.keys() & self._left.keys():
                    pipeline = replace(self._pipelines[builder.name], built=product.built[name])
                    yield self._finish(self._left.pop(name), pipeline, product.seconds)

    def _bake(self, builder: Builder, builds: Sequence[BuilderBuild]) -> BakeProduct:
        start = time.monotonic()
        self._notify(f"{builder.name} builds {', '.join(build.name for build in builds)}")

        def notify(step: str) -> None:
            self._notify(f"on {builder.name}: {step}")

        return replace(self._pipelines[builder.name].bake(builds, notify), seconds=time.monotonic() - start)

    def _finish(self, cell: BuilderBuild, pipeline: BuilderPipeline, seconds: float = 0.0) -> CellResult:
        """Record and prove an image that is in the registry; its bake took so many seconds."""
        result = pipeline.run(cell.request, lambda step: self._notify(f"{cell.name}: {step}"))
        notes = [result.note, *self._crew.notes[cell.name]]
        notes += [f"built by {pipeline.builder.name}"] if result.image and result.image.built else []
        return replace(result, seconds=seconds + result.seconds, note="; ".join(filter(None, notes)))

    def _give_up(self, build: BuilderBuild, error: KnowngoodError) -> Iterator[CellResult]:
        """Yield the failure of a cell; for layers, the failures of all cells that need them."""
        failure = error
        if build.keys:
            failure = KnowngoodError(f"it needs {build.layer_names}, which was not built: {error}")
            failure.exit_code = error.exit_code
        for cell in [*self._left.values()] if build.keys else [build]:
            if cell.layers.keys() >= set(build.keys):
                del self._left[cell.name]
                note = "; ".join(self._crew.notes[cell.name])
                yield CellResult(cell=cell.name, status=CellStatus.FAILED, seconds=0, note=note, error=failure)
