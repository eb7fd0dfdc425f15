"""The pipeline of one builder of a fleet: its images go to the registry, and come from there."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood import paths
from knowngood.builders import derive, find, jobs, tags
from knowngood.builders.builder import Builder
from knowngood.builders.command import Order
from knowngood.builders.depot import Depot
from knowngood.building import build, ownership, pipeline, record
from knowngood.building.pipeline import Pipeline, Say
from knowngood.building.planning import Key, Wanted
from knowngood.building.record import Record
from knowngood.cell import Cell
from knowngood.engines import engine as engines
from knowngood.engines import sdk
from knowngood.engines.engine import Engine
from knowngood.errors import KnowngoodError, MissingError
from knowngood.evidence import Evidence
from knowngood.locks.tree import CellLock


class LostError(MissingError):
    """The builder stopped answering (exit 4)."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a cell is built, and where what comes out goes."""

    builder: Builder
    depot: Depot
    network: str
    """Of the build steps: one for the whole fleet, since it is part of what BuildKit knows a step by."""
    prover: Engine | None = None
    """The engine that runs the suite."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """What stands after the stages of a cell's Dockerfile."""

    text: str
    target: str
    contexts: Mapping[str, str]
    """What it needs beside the cell's."""

    def derived(self, plan: build.Plan, folder: Path) -> build.Plan:
        """The cell's plan with these stages, its Dockerfile in `folder`."""
        path = folder / "Dockerfile"
        path.write_text(f"{plan.dockerfile.read_text(encoding='utf-8')}\n{self.text}", encoding="utf-8")
        return replace(plan, dockerfile=path, contexts={**plan.contexts, **self.contexts})


@dataclass(frozen=True, kw_only=True)
class Run:
    """Where the files of a stage go, and who is told how it goes."""

    out: Path
    log: Path
    say: Say
    told: build.Told


@dataclass(frozen=True)
class FarPipeline(Pipeline):
    """The steps, on a builder; `engine` is the builder, as what asks an engine sees it."""

    site: Site

    def existing(self, plan: build.Plan) -> build.Image | None:
        """The plan's image in the registry, whichever builder made it."""
        return self.site.depot.image(plan.inputs)

    def make(self, plan: build.Plan, locked: CellLock, say: Say) -> build.Image:
        """The plan's image, built and pushed; what no other cell had made of it can be had by others afterwards."""
        depot, keys = self.site.depot, self._keys(plan, locked)
        there = depot.caches(keys)
        own = [key for key in keys if tags.layer(key) not in there]
        with paths.scratch() as folder:
            order = self.order(depot.sources(keys), folder)
            argv = order.cell(plan, tags.image(plan.inputs), tags.layer(own[0]) if own else None)
            self.execute(argv, pipeline.log(locked.cell, f"build-{self.site.builder.file}"), say)
            said = json.loads(order.metadata.read_text(encoding="utf-8"))
        image = depot.pushed(plan.inputs, str(said["containerimage.digest"]))
        depot.share(own)
        self._load(image, locked.cell, say)
        return image

    def layers(self, cell: Cell, names: Sequence[str], say: Say) -> None:
        """Some layers of a cell, built into the registry's cache."""
        locked, cell, _ = self.lock(cell, say)
        plan = self.plan(locked, say)
        known = {key[0]: key for key in self._keys(plan, locked)}
        if unknown := [name for name in names if name not in known]:
            raise KnowngoodError(f"{cell} has no layer {', '.join(unknown)}; its lock has changed: run it again")
        self._share(plan, locked, [known[name] for name in names], say)

    def share(self, plan: build.Plan, locked: CellLock, say: Say) -> None:
        """All layers of a cell in the registry's cache: those that are not there are built, the ground first."""
        keys = self._keys(plan, locked)
        ground = [key for key in keys if derive.is_ground(key[0])]
        for part in (ground, [key for key in keys if key not in ground]):
            there = self.site.depot.caches(part)
            self._share(plan, locked, [key for key in part if tags.layer(key) not in there], say)

    def files(self, plan: build.Plan, locked: CellLock, more: Stages, run: Run) -> None:
        """The files that come of a stage beyond those of a cell's Dockerfile."""

        def work(lent: build.Plan) -> None:
            with paths.scratch() as folder:
                derived = more.derived(lent, folder)
                order = self.order(self.site.depot.sources(self._keys(plan, locked)), folder)
                self.execute(order.files(derived, more.target, uuid.uuid4().hex, run.out), run.log, run.say, run.told)

        pipeline.lent(plan, work, run.say)

    def _share(self, plan: build.Plan, locked: CellLock, keys: Sequence[Key], say: Say) -> None:
        depot = self.site.depot
        if not keys:
            return
        with ownership.held(tags.layer(keys[0]), wait=True, say=say):
            if len(depot.caches(keys)) == len(keys):  # another run was first
                return
            pipeline.lent(plan, lambda lent: self._make_layers(lent, locked, keys, say), say)
            depot.share(keys)

    def _make_layers(self, plan: build.Plan, locked: CellLock, keys: Sequence[Key], say: Say) -> None:
        names = [name for name, _ in keys]
        stages = {layer.name: derive.stage(layer) for layer in locked.layers}
        wanted = [stages.get(name, name.partition("-")[0]) for name in names]
        text = derive.layers(plan.dockerfile.read_text(encoding="utf-8"), wanted)
        with paths.scratch() as folder:
            derived = replace(plan, dockerfile=folder / "Dockerfile")
            derived.dockerfile.write_text(text, encoding="utf-8")
            order = self.order(self.site.depot.sources(self._keys(plan, locked)), folder)
            argv = order.layers(derived, tags.layer(keys[0]), ground=derive.VENV in names)
            log = paths.cache_dir() / "logs" / f"layer-{names[0]}" / f"build-{self.site.builder.file}.log"
            self.execute(argv, log, say)

    def taken(self, image: build.Image, locked: CellLock, plan: build.Plan) -> Record:
        """The record of an image of the registry."""
        shape = self.shape(plan.dockerfile.read_text(encoding="utf-8"), locked, plan.contexts["base"])
        builder = self.site.builder
        tools = {"uv": shape.uv, "buildkit": builder.buildkit, "engine": builder.version or builder.driver}
        names = tuple(layer.name for layer in locked.layers)
        return record.of(str(locked.cell), shape, names, self.site.depot.described(image.digest), tools)

    def prove(self, cell: Cell, image: build.Image, say: Say) -> tuple[Path | None, Evidence]:
        """The suite, in the image that an engine pulls."""
        prover = self.site.prover
        if prover is None:
            raise MissingError(f"{cell}: there is no engine to run its image on; `knowngood engine up` starts one")
        repository = str(self.site.depot.registry.repository)
        with sdk.client(prover) as client:
            say(f"pulling {repository}@{image.digest[:19]}")
            client.images.pull(repository, tag=image.digest).tag("knowngood", str(cell))
        proven = replace(image, tag=f"knowngood:{cell}")
        return Pipeline.prove(replace(self, engine=prover), cell, proven, say)

    def order(self, caches: Sequence[str], folder: Path) -> Order:
        """What the builder is told, with these caches to read from; what came out is noted in the folder."""
        site = self.site
        return Order(
            builder=site.builder,
            repository=site.depot.registry.repository,
            network=site.network,
            caches=caches,
            metadata=folder / "metadata.json",
        )

    def execute(self, argv: Sequence[str], log: Path, say: Say, told: build.Told = build.step) -> None:
        """Run a build on the builder; `LostError` when it stops answering."""
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            build.execute(argv, {**os.environ, **self.site.builder.env}, log=log, say=say, told=told)
        except KnowngoodError as error:
            if find.answers(self.site.builder):
                raise
            raise LostError(f"builder {self.site.builder.name} is gone in mid-build: {error}") from None

    def _load(self, image: build.Image, cell: Cell, say: Say) -> None:
        """An image that this machine's engine built gets the name under which builds here leave it."""
        here = engines.find_system()
        running = here if isinstance(here, Engine) else engines.find_embedded()
        if running is None or running.host != self.site.builder.host:
            return
        with contextlib.suppress(KnowngoodError), sdk.client(running) as client:
            client.images.get(image.tag).tag("knowngood", str(cell))
            say(f"loaded as knowngood:{cell}")

    def _keys(self, plan: build.Plan, locked: CellLock) -> tuple[Key, ...]:
        text = plan.dockerfile.read_text(encoding="utf-8")
        if not derive.has(text, (derive.VENV, derive.SUITE)):
            return ()  # a template of the project's own, whose layers have no names
        shape = self.shape(text, locked, plan.contexts["base"])
        return jobs.keys(Wanted(cell=str(locked.cell), layers=locked.layers, shape=shape))
