"""Compile on this machine's engine: a container of a cell's image that works in a build folder of the cache.

A compile survives the program that started it: the next run waits for one that is still running, and one that was
killed has left its objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.errors import MissingError
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.images import free_resources
from knowngood.wheels import compile_inside
from knowngood.wheels.compile_request import CompileCapacity, CompileOutcome, CompilePlan

if TYPE_CHECKING:
    from docker.models.containers import Container

    from docker import DockerClient
    from knowngood.engine.container_engine import Engine

COMPILE_LABEL = "io.knowngood.compile"
_POLL_SECONDS = 1.0  # seconds


@dataclass(frozen=True, kw_only=True)
class CompileContainer:
    """The container of one compile."""

    name: str
    """Name of the container; one for each key, so that no two compile the same."""
    image: str
    work: Path
    """The build folder, `/build` inside."""
    toolkit: Path
    tools: Path
    env: Mapping[str, str]
    memory: int
    """Bytes for the whole container: all that is free, since the peaks of jobs seldom coincide."""
    user: str

    def command(self) -> list[str]:
        """Return the command in the container; it yields the processors to all other work."""
        return ["nice", "-n", "19", "python", "/build/inside.py"]

    def mounts(self) -> dict[str, tuple[str, str]]:
        """Return folder of this machine -> (folder in the container, mode)."""
        return {
            str(self.work): ("/build", "rw"),
            str(self.toolkit): ("/toolkit", "ro"),
            str(self.tools): ("/tools", "ro"),
        }

    def argv(self, docker: tuple[str, ...]) -> list[str]:
        """Return the `docker run` command for it. Pure."""
        argv = [*docker, "run", "--rm", "--name", self.name, "--network", "none", "--user", self.user]
        argv += ["--memory", str(self.memory), "--init"]
        for folder, (place, mode) in self.mounts().items():
            argv += ["--volume", f"{folder}:{place}:{mode}"]
        for key, value in sorted(self.env.items()):
            argv += ["--env", f"{key}={value}"]
        return [*argv, self.image, *self.command()]


def measure_capacity() -> CompileCapacity:
    """Return the processors of this machine and its free memory."""
    return CompileCapacity(processors=os.cpu_count() or 1, memory=free_resources.measure_free_memory())


def compile_in_container(planned: CompilePlan, engine: Engine, notify: Notify) -> CompileOutcome:
    """Compile in a container, or wait for a running one with the same key.

    Raises `MissingError` when the engine is on another machine, or goes away.
    """
    host = planned.host
    image = host.line.image(host.plan, notify)
    planned.sdist.unpack(planned.work / "src")
    shutil.copyfile(compile_inside.__file__, planned.work / "inside.py")
    return run_compile_container(_container_of(planned, image.tag), engine, log=planned.work / "log", notify=notify)


def _container_of(planned: CompilePlan, image: str) -> CompileContainer:
    return CompileContainer(
        name=planned.name,
        image=image,
        work=planned.work,
        toolkit=planned.toolkit,
        tools=planned.tools,
        env=planned.env,
        memory=planned.power.memory,
        user=f"{os.getuid()}:{os.getgid()}",
    )


def run_compile_container(job: CompileContainer, engine: Engine, *, log: Path, notify: Notify) -> CompileOutcome:
    """Compile to the end, or wait for a running container with the same name.

    Raises `MissingError` when the engine is on another machine, or goes away; finished objects are kept.
    """
    if not engine.host.startswith("unix://"):
        raise MissingError(
            f"the engine at {engine.host} is on another machine; compiling needs one that can mount folders of this one"
        )
    result = job.work / "result.json"
    with container_engine.docker_client(engine) as client:
        container = _running_container(client, job)
        try:
            if container is None:
                result.unlink(missing_ok=True)
                log.write_bytes(b"")
                container = _create_container(client, job)
                container.start()
            else:
                notify("an earlier run's container is still compiling: waiting for it")
            _follow_log(container, log, notify)
            state = container.attrs["State"]
        finally:  # by name: a signal may come when the engine has made it and this process does not know it yet
            with contextlib.suppress(Exception):
                client.containers.get(job.name).remove(force=True, v=True)
    document = json.loads(result.read_text()) if result.exists() else {}
    oom = bool(state.get("OOMKilled"))
    return CompileOutcome(folder=job.work, code=int(state["ExitCode"]), out_of_memory=oom, result=document)


def _running_container(client: DockerClient, job: CompileContainer) -> Container | None:
    """Return the container with this name if it is running; one that has ended is removed."""
    from docker.errors import NotFound

    try:
        container = client.containers.get(job.name)
    except NotFound:
        return None
    if container.status == "running":
        return container
    container.remove(force=True, v=True)
    return None


def _create_container(client: DockerClient, job: CompileContainer) -> Container:
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
        labels={COMPILE_LABEL: job.name},
    )


def _follow_log(container: Container, log: Path, notify: Notify) -> None:
    for step in _log_steps(container, log):
        notify(step)


def _log_steps(container: Container, log: Path) -> Iterator[str]:
    """Yield the steps that the log reports, until the container has ended."""
    at = 0
    while True:
        container.reload()
        ended = container.status not in ("created", "running", "restarting", "paused")
        with log.open("rb") as opened:
            opened.seek(at)
            text = opened.read()
        whole = text.rfind(b"\n") + 1
        at += whole
        yield from compile_inside.steps(text[:whole].decode(errors="replace"))
        if ended:
            return
        time.sleep(_POLL_SECONDS)
