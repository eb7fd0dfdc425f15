"""A compile on this machine's engine: a container of a cell's image, and the build folder of the cache to work in.

A compile outlives whoever started it: one that is still running is taken over, one that was killed left its objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.building import machine
from knowngood.cell import Cell
from knowngood.compiling import inside
from knowngood.compiling.place import Ended, Planned, Power, Say
from knowngood.engines import sdk
from knowngood.errors import MissingError

if TYPE_CHECKING:
    from docker.models.containers import Container

    from docker import DockerClient
    from knowngood.engines.engine import Engine

LABEL = "io.knowngood.compile"
_POLL = 1.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Job:
    """One compile, decided before anything runs."""

    name: str
    """Of the container: one for one key, so that no two compile the same."""
    image: str
    work: Path
    """The build folder, `/build` inside."""
    toolkit: Path
    tools: Path
    env: Mapping[str, str]
    memory: int
    """Bytes, for the whole container: what is free, since the jobs' peaks seldom coincide."""
    user: str

    def command(self) -> list[str]:
        """What runs in the container; it yields the processor to anything else."""
        return ["nice", "-n", "19", "python", "/build/inside.py"]

    def mounts(self) -> dict[str, tuple[str, str]]:
        """Folder of this machine to (folder inside, mode)."""
        return {
            str(self.work): ("/build", "rw"),
            str(self.toolkit): ("/toolkit", "ro"),
            str(self.tools): ("/tools", "ro"),
        }

    def argv(self, docker: tuple[str, ...]) -> list[str]:
        """The same as `docker run` says it. Pure."""
        argv = [*docker, "run", "--rm", "--name", self.name, "--network", "none", "--user", self.user]
        argv += ["--memory", str(self.memory), "--init"]
        for folder, (place, mode) in self.mounts().items():
            argv += ["--volume", f"{folder}:{place}:{mode}"]
        for key, value in sorted(self.env.items()):
            argv += ["--env", f"{key}={value}"]
        return [*argv, self.image, *self.command()]


@dataclass(frozen=True)
class Here:
    """The engine of this machine."""

    engine: Engine

    @property
    def name(self) -> str:
        """For the record."""
        return f"container, engine {self.engine.version}"

    def power(self, _cell: Cell, _say: Say) -> Power:
        """The processors of this machine, and the memory that is free."""
        return Power(processors=os.cpu_count() or 1, memory=machine.left(self.engine).memory)

    def compile(self, planned: Planned, say: Say) -> Ended:
        """In a container; one of the same key that is running is taken over.

        Raises `MissingError` for an engine on another machine, or that goes away.
        """
        host = planned.host
        image = host.line.image(host.plan, host.locked, say)
        planned.sdist.unpack(planned.work / "src")
        shutil.copyfile(inside.__file__, planned.work / "inside.py")
        return run(_job(planned, image.tag), self.engine, log=planned.work / "log", say=say)

    def command(self, planned: Planned) -> list[str]:
        """The image, and the container."""
        job = _job(planned, planned.host.plan.tag)
        return [f"knowngood build {planned.host.locked.cell}", shlex.join(job.argv(self.engine.docker))]


def _job(planned: Planned, image: str) -> Job:
    return Job(
        name=planned.name,
        image=image,
        work=planned.work,
        toolkit=planned.toolkit,
        tools=planned.tools,
        env=planned.env,
        memory=planned.power.memory,
        user=f"{os.getuid()}:{os.getgid()}",
    )


def run(job: Job, engine: Engine, *, log: Path, say: Callable[[str], None]) -> Ended:
    """Compile until it ends; one of the same name that is running is taken over.

    Raises `MissingError` for an engine on another machine, or that goes away; what was finished is kept.
    """
    if not engine.host.startswith("unix://"):
        raise MissingError(
            f"the engine at {engine.host} is on another machine; compiling needs one that sees this one's folders"
        )
    result = job.work / "result.json"
    with sdk.client(engine) as client:
        container = _running(client, job)
        if container is None:
            result.unlink(missing_ok=True)
            log.write_bytes(b"")
            container = _create(client, job)
            container.start()
        else:
            say("an earlier run's container is still compiling: waiting for it")
        try:
            _wait(container, log, say)
            state = container.attrs["State"]
        finally:
            with contextlib.suppress(Exception):
                container.remove(force=True, v=True)
    left = json.loads(result.read_text()) if result.exists() else {}
    oom = bool(state.get("OOMKilled"))
    return Ended(folder=job.work, code=int(state["ExitCode"]), out_of_memory=oom, result=left)


def _running(client: DockerClient, job: Job) -> Container | None:
    """The container of the same name, if it is at work; what is left of one that ended is removed."""
    from docker.errors import NotFound

    try:
        found = client.containers.get(job.name)
    except NotFound:
        return None
    if found.status == "running":
        return found
    found.remove(force=True, v=True)
    return None


def _create(client: DockerClient, job: Job) -> Container:
    return client.containers.create(
        job.image,
        job.command(),
        name=job.name,
        environment=dict(job.env),
        volumes=[f"{folder}:{place}:{mode}" for folder, (place, mode) in job.mounts().items()],
        network_mode="none",
        mem_limit=job.memory,
        user=job.user,
        init=True,
        labels={LABEL: job.name},
    )


def _wait(container: Container, log: Path, say: Callable[[str], None]) -> None:
    for step in _steps(container, log):
        say(step)


def _steps(container: Container, log: Path) -> Iterator[str]:
    """What the log says has begun, until the container has ended."""
    at = 0
    while True:
        container.reload()
        ended = container.status not in ("created", "running", "restarting", "paused")
        with log.open("rb") as opened:
            opened.seek(at)
            text = opened.read()
        whole = text.rfind(b"\n") + 1
        at += whole
        yield from inside.steps(text[:whole].decode(errors="replace"))
        if ended:
            return
        time.sleep(_POLL)
