"""`knowngood build-matrix`: engine, base, lock, render, build and smoke for each selected cell.

A step whose inputs have not changed is not done again; a cell that fails does not stop the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from knowngood import evidence, render, retrying, smoke
from knowngood.atomic import write_text
from knowngood.building import build, ownership, records
from knowngood.building.record import Record
from knowngood.building.results import Result, Status
from knowngood.building.shape import Shape
from knowngood.cell import Cell
from knowngood.engines.engine import Engine
from knowngood.errors import KnowngoodError, NetworkError, from_os
from knowngood.evidence import Evidence, Tier
from knowngood.locks import locking, wheelhouse
from knowngood.locks.tree import CellLock
from knowngood.paths import cache_dir
from knowngood.predictions import predict
from knowngood.project import Project, cxx11abi
from knowngood.system import bases

Say = Callable[[str], None]
Done = TypeVar("Done")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every cell of a run shares."""

    wheelhouse: Path
    locked: bool = False
    prove: bool = True
    """Run the suite in what was built."""
    suite: smoke.Options = field(default_factory=smoke.Options)
    force_smoke: bool = False
    """Run the suite though there is good evidence for this very image."""
    record: bool = False
    """Write the record of what was built beside its Dockerfile."""
    wait: bool = True
    """For another run that works on the same cell."""


@dataclass(frozen=True)
class Pipeline:
    """The steps, for the cells of one project and the engine of this host."""

    project: Project
    options: Options
    engine: Engine

    def run(self, cell: Cell, say: Say) -> Result:
        """All steps for one cell; a failure is in the result."""
        start = time.monotonic()
        note = ""
        try:
            locked, cell, note = self.lock(cell, say)
            with ownership.held(str(cell), wait=self.options.wait, say=say):
                plan = self.plan(locked, say)
                image = self.image(plan, locked, say)
                note = "; ".join(filter(None, [note, self.compare(image, locked, plan)]))
                path, run = self.prove(cell, image, say) if self.options.prove else (None, None)
        except (KnowngoodError, OSError) as error:
            said = error if isinstance(error, KnowngoodError) else from_os(error)
            if said is None:
                raise
            return Result(cell=str(cell), status=Status.FAILED, seconds=time.monotonic() - start, note=note, error=said)
        result = Result(
            cell=str(cell),
            status=Status.BUILT,
            seconds=time.monotonic() - start,
            tier=Tier.BUILT,
            image=image,
            note=note,
        )
        if run is None:
            return result
        runs, _ = evidence.load_all(self.project.evidence, str(cell))
        of_image = [item for item in runs if item.image == image.digest]
        result = replace(result, tier=evidence.tier(of_image, locked=True), evidence=path)
        if not run.ok:
            verdict = run.report["verdict"]
            return replace(
                result, status=Status.FAILED, error=KnowngoodError(f"{verdict['domain']}: {verdict['text']}")
            )
        return replace(result, status=Status.PROVEN if image.built or path else Status.UNCHANGED)

    def lock(self, cell: Cell, say: Say) -> tuple[CellLock, Cell, str]:
        """The cell's lock; its `fa0` twin's, with a note, where the wheelhouse lacks the flash-attn wheel."""
        matrix = self.project.matrix
        if lacks := locking.lacking(cell, matrix, self.options.wheelhouse, cxx11abi=cxx11abi):
            if lacks.package != "flash-attn":
                raise locking.NoWheelError(lacks.said)
            twin = cell.without_flash_attn()
            if str(twin) not in matrix.entries:
                raise locking.NoWheelError(f"{lacks.said}; and matrix.yaml has no {twin}")
            locked, _, _ = self.lock(twin, say)
            return locked, twin, f"built in place of {cell}: the wheelhouse has no flash-attn wheel for it"
        found = locking.lock_cell(
            matrix.entry(cell),
            matrix,
            self.project.tree,
            house=self.options.wheelhouse,
            cxx11abi=cxx11abi,
            upgrade=False,
            locked_only=self.options.locked,
            say=say,
        )
        return found.lock, cell, ""

    def plan(self, locked: CellLock, say: Say) -> build.Plan:
        """Dockerfile written, base at hand, everything named that makes the image."""
        project, cell = self.project, locked.cell
        folder = project.tree.cell_folder(cell)
        text = render.dockerfile(locked, project.templates)
        if self.options.locked and render.stale({folder / "Dockerfile": text}, []):
            raise KnowngoodError(f"{cell}: its Dockerfile is stale; run `knowngood render` and commit it")
        write_text(folder / "Dockerfile", text)
        base = bases.context(project, locked.base, locked=self.options.locked, say=say)
        contexts = {"base": base, "tools": str(build.tools()), "smoke": str(project.suite)}
        wheels = [item for item in locked.distributions if item.made_here]
        for item in wheels:
            path = self.options.wheelhouse / item.file
            if not path.is_file():
                raise locking.NoWheelError(locking.no_wheel(cell, item.name, item.version))
            wheelhouse.check_hash(wheelhouse.Wheel(path=path, version=item.version), item.sha256)
        if wheels:
            contexts["wheelhouse"] = str(build.wheelhouse(self.options.wheelhouse, wheels))
        return build.Plan(
            tag=f"knowngood:{cell}",
            dockerfile=folder / "Dockerfile",
            context=project.tree.folder,
            contexts=contexts,
            inputs=self.shape(text, locked, base).inputs,
        )

    def shape(self, dockerfile: str, locked: CellLock, base: str) -> Shape:
        """All that shapes the cell's image; `base` is the build context."""
        return build.shape(
            dockerfile,
            lock=locked.digest,
            base=base.rpartition("@")[2],
            recipe=build.folder_digest(self.project.tree.folder / "recipe"),
            suite=build.folder_digest(self.project.suite),
        )

    def image(self, plan: build.Plan, locked: CellLock, say: Say) -> build.Image:
        """The plan's image, built unless it is there; tried again when a server did not answer."""
        image = self.existing(plan) or lent(plan, lambda lent_plan: self.make(lent_plan, locked, say), say)
        if self.engine.containerd_store:
            self.record(image, locked, plan)
        return image

    def existing(self, plan: build.Plan) -> build.Image | None:
        """The plan's image, if it was made from the very same inputs."""
        return build.existing(plan, self.engine)

    def make(self, plan: build.Plan, locked: CellLock, say: Say) -> build.Image:
        """The plan's image, built."""
        return build.build(plan, self.engine, log=log(locked.cell, "build"), say=say)

    def record(self, image: build.Image, locked: CellLock, plan: build.Plan) -> Record:
        """The record of the plan's image, which stays in the cache; `KnowngoodError` where the engine gives none."""
        made = records.kept(plan.inputs)
        if made is None or made.manifest.digest != image.digest:
            made = self.taken(image, locked, plan)
            records.keep(made)
        return made

    def taken(self, image: build.Image, locked: CellLock, plan: build.Plan) -> Record:
        """A new record of the plan's image."""
        shape = self.shape(plan.dockerfile.read_text(encoding="utf-8"), locked, plan.contexts["base"])
        return records.take(self.engine, image, locked, shape)

    def compare(self, image: build.Image, locked: CellLock, plan: build.Plan) -> str:
        """A note when the image is not what the committed record says; a new record where that is asked for."""
        if not self.engine.containerd_store and not self.options.record:
            return ""
        made, committed = self.record(image, locked, plan), self.project.tree.load_record(locked.cell)
        if self.options.record:
            write_text(self.project.tree.record_path(locked.cell), made.text())
        return _said(made, committed)

    def prove(self, cell: Cell, image: build.Image, say: Say) -> tuple[Path | None, Evidence]:
        """Good evidence for this very image on this machine: what there is (no path), or that of a new run."""
        if not self.options.force_smoke and (known := self._known(cell, image)):
            return None, known
        run = smoke.in_container(
            cell,
            image.tag,
            image.digest,
            self.engine,
            self.options.suite,
            predictions=predict(self.project.predictions, cell, gpu=self.options.suite.gpus),
            log=log(cell, "smoke"),
            say=say,
        )
        return evidence.store(run, self.project.evidence), run

    def _known(self, cell: Cell, image: build.Image) -> Evidence | None:
        wanted = evidence.Where.CONTAINER_GPU if self.options.suite.gpus else None
        node = smoke.node(self.engine)
        runs, _ = evidence.load_all(self.project.evidence, str(cell))
        good = [
            run
            for run in runs
            if run.ok
            and run.image == image.digest
            and run.node == node
            and (wanted is None or run.where is wanted)
            and (self.options.suite.quick or not run.quick)
        ]
        return good[-1] if good else None


def lent(plan: build.Plan, work: Callable[[build.Plan], Done], say: Say) -> Done:
    """What `work` makes of the plan with the host's secrets in it; again when a server did not answer."""
    for attempt in retrying.attempts(on=NetworkError, attempts=3, wait_initial=2, wait_max=30, timeout=None):
        with attempt, build.host_secrets() as secrets:
            if attempt.num > 1:
                say(f"the network failed: attempt {attempt.num}")
            return work(replace(plan, secrets=secrets))
    raise AssertionError("the last attempt raises")


def _said(made: Record, committed: Record | None) -> str:
    """A note when the same shape came out as other bytes before."""
    if committed is None or committed.shape != made.shape or committed.manifest == made.manifest:
        return ""
    layers = ", ".join(committed.differences(made))
    return f"NOT as recorded ({layers} differ): `knowngood verify '{made.cell}'` says in which files"


def log(cell: Cell, step: str) -> Path:
    """Where the whole output of a step goes."""
    return cache_dir() / "logs" / str(cell) / f"{step}.log"
