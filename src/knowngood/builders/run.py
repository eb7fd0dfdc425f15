"""`knowngood build --builder`: the cells of a project on the builders that a user names."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from knowngood import render
from knowngood.builders import derive, find, jobs, tags
from knowngood.builders.builder import Builder
from knowngood.builders.depot import Depot
from knowngood.builders.fleet import Fleet, Hands
from knowngood.builders.jobs import LayerJob
from knowngood.builders.line import FarPipeline, Site
from knowngood.building import crew, dryrun, machine, planning, survey
from knowngood.building.pipeline import Options
from knowngood.building.planning import Holdings, Wanted
from knowngood.building.results import Result, Status
from knowngood.building.schedule import Room, Task
from knowngood.cell import Cell, parse
from knowngood.engines.engine import Engine
from knowngood.errors import KnowngoodError
from knowngood.project import Project

PLENTY = 10**15
"""Bytes where nobody says how many there are."""
_SHARE = 0.9
"""Of a machine's memory that builds may take."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Cells for some builders."""

    project: Project
    options: Options
    builders: tuple[Builder, ...]
    depot: Depot
    network: str
    prover: Engine | None
    """The engine that runs the suite, where that is asked for."""

    def line(self, builder: Builder) -> FarPipeline:
        """The steps on one of the builders."""
        site = Site(builder=builder, depot=self.depot, network=self.network, prover=self.prover)
        return FarPipeline(self.project, self.options, find.as_engine(builder), site)

    def results(
        self,
        cells: Sequence[Cell],
        child: Callable[[Builder, Cell, Sequence[str]], Sequence[str]],
        *,
        at_once: int | None,
        say: Say,
    ) -> Iterator[Result]:
        """Each cell's result as it comes; `child` has the words for a process that builds a cell, or layers of it."""
        asked = survey.asked(self.project, cells, self.options.wheelhouse)
        held = self.depot.holdings(list(asked), survey.holdings(self.project, None))
        wanted = planning.order(list(asked), held)
        first = jobs.shared(wanted, held, self._has_stages)
        made = frozenset(key for job in first for key in job.keys)
        of_cell = {jobs.cell_task(item, held, made, prove=self.options.prove): item for item in wanted}
        later = jobs.spare(wanted, held, made, self._has_stages)
        of_layers = {job.task: job for job in (*first, *later)}
        of_id = {item.cell: cell for item, cell in asked.items()}

        def start(task: Task, builder: Builder) -> crew.Work:
            if job := of_layers.get(task):
                return crew.Child(task.cell, child(builder, of_id[job.cell], job.names), self.project.root)
            item = of_cell[task]
            if item.shape and item.shape.inputs in held.images and not self.options.prove:  # nothing to wait for
                return crew.Done(self.line(builder).run(asked[item], say))
            return crew.Child(task.cell, child(builder, asked[item], ()), self.project.root)

        hands = Hands(start=start, room=room, answers=find.answers, say=say)
        many = [(one, at_once or machine.jobs(one.processors or 1)) for one in self.builders]
        if first:
            say(f"{_counted(first)} that several cells have, each built once, before them")
        tasks = [*(job.task for job in first), *of_cell]
        return Fleet(tasks, of_layers, many, hands, [job.task for job in later]).results()

    def commands(self, cells: Sequence[Cell]) -> list[str]:
        """What the first builder would be told, with nothing built before; another is told the same."""
        asked = survey.asked(self.project, cells, self.options.wheelhouse)
        wanted = planning.order(list(asked), Holdings())
        first = jobs.shared(wanted, Holdings(), self._has_stages)
        made = {key for job in first for key in job.keys}
        line, out = self.line(self.builders[0]), []
        for job in first:
            out.append(f"# $KNOWNGOOD_TMP/Dockerfile: that of {job.cell}, and a stage of {', '.join(job.names)} alone")
            derived = replace(dryrun.plan(line, parse(job.cell)), dockerfile=dryrun.FOLDER / "Dockerfile")
            order = line.order([tags.layer(key) for key in job.after], dryrun.FOLDER)
            out.append(shlex.join(order.layers(derived, tags.layer(job.keys[0]), ground=not job.after)))
        for item in wanted:
            out.append(f"# {item.cell}" + (f": {why}" if (why := item.lacks or item.unlocked) else ""))
            if item.shape and not item.lacks:
                plan = dryrun.plan(line, parse(item.cell))
                own = [key for key in jobs.keys(item) if key not in made]
                order = line.order([tags.layer(key) for key in jobs.keys(item) if key in made], dryrun.FOLDER)
                out.append(shlex.join(order.cell(plan, tags.image(plan.inputs), tags.layer(own[0]) if own else None)))
        return out

    def layers(self, cell: Cell, names: Sequence[str], say: Say) -> Result:
        """Some layers of a cell, on the one builder."""
        began, error = time.monotonic(), None
        try:
            self.line(self.builders[0]).layers(cell, names, say)
        except KnowngoodError as failed:
            error = failed
        status = Status.FAILED if error else Status.BUILT
        return Result(cell=str(cell), status=status, seconds=time.monotonic() - began, error=error)

    def _has_stages(self, item: Wanted) -> bool:
        locked = self.project.tree.load(parse(item.cell))
        if locked is None:
            return False
        text = render.dockerfile(locked, self.project.templates)
        return derive.has(text, {derive.VENV, derive.SUITE, *map(derive.stage, locked.layers)})


def room(builder: Builder) -> Room:
    """What the builder's machine has left, as far as it can be known: memory and disk here, memory elsewhere."""
    if builder.host.startswith("unix://"):
        here = machine.left(find.as_engine(builder))
        return Room(memory=here.memory, disk=here.disk)
    return Room(memory=int(builder.memory * _SHARE) if builder.memory else PLENTY, disk=PLENTY)


def network(builders: Sequence[Builder]) -> str:
    """What suits all of the builders: the host's network as soon as one has no other."""
    return "default" if all(one.bridge for one in builders) else "host"


def told(builders: Sequence[Builder]) -> Iterator[str]:
    """A line for each builder."""
    for one in builders:
        size = f", {one.memory / 1e9:.0f} GB of memory, {one.processors} processors" if one.memory else ""
        yield f"builder {one.name}: {one.driver} driver, BuildKit {one.buildkit}{size}"


def _counted(first: Sequence[LayerJob]) -> str:
    count = sum(len(job.names) for job in first)
    return f"{count} layers" if count > 1 else "a layer"
