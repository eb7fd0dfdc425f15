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
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.executors.builder import Builder
from knowngood.executors.builder_crew import NO_BUILDER_LEFT, BuilderCrew, BuilderLostError
from knowngood.executors.builder_pipeline import BakeProduct, BuilderPipeline
from knowngood.executors.shared_layers import BuilderBuild, divide_builds, plan_layer_builds
from knowngood.images.cell_tasks import CellResult, CellStatus

_Bake = Sequence[BuilderBuild]
"""What one builder builds at once."""


class BuilderRounds:
    """The state of one run: which cells have no image yet, and which builder failed with what."""

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
        self._crew: BuilderCrew[_Bake, BakeProduct, CellResult] = BuilderCrew(builders, self._do_bake, stop, notify)
        self._registry = pipelines[builders[0].name].registry
        self._failures: dict[str, dict[str, KnowngoodError]] = defaultdict(dict)
        """For each build, by its name, the builders that failed, and why."""
        self._notes: dict[str, list[str]] = defaultdict(list)

    def results(self) -> Generator[CellResult]:
        """Yield the result of each cell when it is ready. All bakes end with the caller."""
        present = [self._left.pop(name) for name in self._registry.find_built(self._left.values())]
        while self._left:
            builds = self._next_builds()
            if failed := [(build, error) for build in builds if (error := self._final_failure(build))]:
                for build, error in failed:
                    yield from self._give_up(build, error)
                continue
            with contextlib.closing(self._run_round(builds)) as results:
                yield from results
        for cell in present:  # last, because the suite may run in them
            yield self._finish(cell, next(iter(self._pipelines.values())))

    def _run_round(self, builds: _Bake) -> Generator[CellResult]:
        """Divide the builds over the builders, run their bakes, and yield the results of the cells that are built."""
        room = {builder.name: self._room[builder.name] for builder in self._crew.builders}
        bakes = {name: iter(share) for name, share in divide_builds(builds, room, self._failures).items()}

        def take(builder: Builder) -> _Bake | None:
            return next(bakes[builder.name], None)

        with contextlib.closing(self._crew.run(take, self._settle)) as results:
            yield from results

    def _next_builds(self) -> _Bake:
        """Return what has to be built next: layers that several cells need, otherwise the cells."""
        cells = list(self._left.values())
        layers: list[BuilderBuild] = []
        if len(self._crew.builders) > 1:  # one builder has all of its layers in its own cache
            layers = plan_layer_builds(cells, self._registry.find_caches(cells))
        if layers:
            count = sum(len(build.keys) for build in layers)
            self._notify(f"{count} layers that several cells have are built before these cells")
        return layers or cells

    def _do_bake(self, builder: Builder, bake: _Bake) -> BakeProduct:
        pipeline, start = self._pipelines[builder.name], time.monotonic()
        self._notify(f"{builder.name} builds {', '.join(build.name for build in bake)}")

        def notify(step: str) -> None:
            self._notify(f"on {builder.name}: {step}")

        return replace(pipeline.bake(bake, notify), seconds=time.monotonic() - start)

    def _settle(self, builder: Builder, bake: _Bake, outcome: BakeProduct | KnowngoodError) -> Iterator[CellResult]:
        """Note what a bake left behind, and return an iterator that finishes the cells whose image exists."""
        if isinstance(outcome, BuilderLostError):
            for build in bake:
                self._notes[build.name].append(f"begun by {builder.name}, which stopped answering")
            return iter(())
        if isinstance(outcome, KnowngoodError):
            outcome = BakeProduct(failures=dict.fromkeys((build.name for build in bake), outcome))
        for name, error in outcome.failures.items():
            self._failures[name][builder.name] = error
        pipeline = self._pipelines[builder.name]
        cells = [(self._left.pop(name), is_new) for name, is_new in outcome.built.items() if name in self._left]
        seconds = outcome.seconds
        return (self._finish(cell, replace(pipeline, built=is_new), seconds) for cell, is_new in cells)

    def _finish(self, cell: BuilderBuild, pipeline: BuilderPipeline, seconds: float = 0.0) -> CellResult:
        """Record and prove an image that is in the registry; its bake took so many seconds."""
        result = pipeline.run(cell.request, lambda step: self._notify(f"{cell.name}: {step}"))
        notes = [result.note, *self._notes[cell.name]]
        notes += [f"built by {pipeline.builder.name}"] if result.image and result.image.built else []
        return replace(result, seconds=seconds + result.seconds, note="; ".join(filter(None, notes)))

    def _final_failure(self, build: BuilderBuild) -> KnowngoodError | None:
        """Return why no builder will build this; `None` while one of them may."""
        failures = self._failures[build.name]
        for error in failures.values():
            # A builder that lacks something fails with exit code 4: another one may have it. All else is final.
            if error.exit_code != MissingError.exit_code:
                return error
        if any(builder.name not in failures for builder in self._crew.builders):
            return None
        lost = MissingError(NO_BUILDER_LEFT)
        return next(reversed(failures.values()), lost)

    def _give_up(self, build: BuilderBuild, error: KnowngoodError) -> Iterator[CellResult]:
        """Yield the failure of a cell; for layers, the failures of all cells that need them."""
        for cell in [*self._left.values()] if build.keys else [build]:
            failure = error
            if build.keys:
                failure = KnowngoodError(f"it needs {build.layer_names}, which was not built: {error}")
                failure.exit_code = error.exit_code
            if cell.layers.keys() >= set(build.keys):
                del self._left[cell.name]
                note = "; ".join(self._notes[cell.name])
                yield CellResult(cell=cell.name, status=CellStatus.FAILED, seconds=0, note=note, error=failure)
