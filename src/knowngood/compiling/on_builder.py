"""A compile on a builder: a step of a build, whose objects stay in a cache mount there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood import paths
from knowngood.builders import derive
from knowngood.builders.command import RUN
from knowngood.builders.line import FarPipeline, Run, Stages
from knowngood.building import build
from knowngood.building.dryrun import FOLDER
from knowngood.cell import Cell
from knowngood.compiling import inside, recipe, stage
from knowngood.compiling.place import Ended, Planned, Power, Say
from knowngood.errors import MissingError
from knowngood.system import bases

LOOK = """\
FROM base AS looked
ARG @RUN@
WORKDIR /room
RUN --network=none ["sh", "-c", "cat /proc/meminfo > meminfo; nproc > nproc"]
FROM scratch AS room
COPY --from=looked /room/ /
""".replace("@RUN@", RUN)
"""A Dockerfile that asks a builder what it has: not all of them say it otherwise."""


@dataclass(frozen=True, kw_only=True)
class OnBuilder:
    """One builder, with the steps that it does for a cell."""

    line: FarPipeline
    ask: bool = True
    """Whether it is asked what it has, by a build; else what is known of it counts."""

    @property
    def name(self) -> str:
        """For the record: not whose machine it is."""
        builder = self.line.site.builder
        return f"builder ({builder.driver} driver), BuildKit {builder.buildkit}"

    def power(self, cell: Cell, say: Say) -> Power:
        """What the builder has free; no more than it was limited to when it was made."""
        builder = self.line.site.builder
        if not self.ask:
            return Power(processors=builder.processors or 1, memory=builder.memory or recipe.MEMORY)
        seen = self._look(cell, say)
        if builder.engine:
            return seen
        return Power(
            processors=min(seen.processors, builder.processors or seen.processors),
            memory=min(seen.memory, builder.memory or seen.memory),
        )

    def compile(self, planned: Planned, say: Say) -> Ended:
        """In a step of a build; another run's compile of the same key is waited for.

        Raises `LostError` when the builder goes away.
        """
        host, name = planned.host, self.line.site.builder.file
        line = replace(self.line, project=host.line.project, options=host.line.options)
        if not derive.has(host.plan.dockerfile.read_text(encoding="utf-8"), {stage.HOST}):
            raise MissingError(
                f"{host.plan.dockerfile} has no stage {stage.HOST}, in which a builder would compile; "
                "compile on this machine's engine, or give the project's template that stage"
            )
        line.share(host.plan, host.locked, say)
        order, out = planned.work / "order", planned.work / f"from-{name}"
        for folder in (order, out):
            shutil.rmtree(folder, ignore_errors=True)
        planned.sdist.unpack(order / "src")
        shutil.copyfile(inside.__file__, order / "inside.py")
        run = Run(out=out, log=planned.work / "logs" / f"{name}.log", say=say, told=told)
        line.files(host.plan, host.locked, _stages(planned), run)
        result = out / "result.json"
        left = json.loads(result.read_text()) if result.exists() else {}
        return Ended(folder=out, code=0, out_of_memory=False, result=left)

    def command(self, planned: Planned) -> list[str]:
        """The build."""
        host, more = planned.host, _stages(planned)
        derived = replace(host.plan, dockerfile=FOLDER / "Dockerfile", contexts={**host.plan.contexts, **more.contexts})
        argv = self.line.order((), FOLDER).files(derived, more.target, "$RANDOM", FOLDER / "out")
        said = (
            f"# $KNOWNGOOD_TMP/Dockerfile: that of {host.locked.cell}, and a stage that compiles, {planned.jobs} jobs"
        )
        return [said, shlex.join(argv)]

    def _look(self, cell: Cell, say: Say) -> Power:
        project, name = self.line.project, self.line.site.builder.file
        base = bases.context(project, project.matrix.entry(cell).base, locked=False, say=say)
        with paths.scratch() as folder:
            dockerfile, out = folder / "Dockerfile", folder / "out"
            dockerfile.write_text(LOOK, encoding="utf-8")
            plan = build.Plan(tag="", dockerfile=dockerfile, context=out, contexts={"base": base}, inputs="none")
            out.mkdir()
            argv = self.line.order((), folder).files(plan, "room", uuid.uuid4().hex, out)
            self.line.execute(argv, paths.cache_dir() / "logs" / "look" / name / "build.log", lambda _: None)
            return room((out / "meminfo").read_text(), (out / "nproc").read_text())


def room(meminfo: str, processors: str) -> Power:
    """What a machine says of itself. Pure."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if match is None or not processors.strip().isdecimal():
        raise MissingError("it does not say how much memory and how many processors it has")
    return Power(processors=int(processors), memory=int(match[1]) * 1024)


def _stages(planned: Planned) -> Stages:
    order: Path = planned.work / "order"
    contexts = {stage.ORDER: order, stage.TOOLKIT: planned.toolkit, stage.TOOLS: planned.tools}
    return Stages(
        text=stage.text(planned.name, planned.env),
        target=stage.WHEEL,
        contexts={name: str(folder) for name, folder in contexts.items()},
    )


def told(line: str) -> str | None:
    """A step of BuildKit, or one that ninja has begun."""
    match = re.match(r"#\d+ [\d.]+ (\[\d+/\d+\] \S+)$", line)
    return match[1] if match else build.step(line)
