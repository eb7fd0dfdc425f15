"""The container that compiles: a cell's image, the toolkit beside it, the build folder of the cache to work in.

A compile outlives whoever started it: one that is still running is taken over, one that was killed left its objects.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood import sdk
from knowngood.errors import KnowngoodError, MissingError

if TYPE_CHECKING:
    from docker.models.containers import Container

    from docker import DockerClient
    from knowngood.engine import Engine

LABEL = "io.knowngood.compile"
_POLL = 1.0  # seconds
_KILLED = (137, 143)  # by SIGKILL, SIGTERM
_STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] .*? -c (?:-c )?(\S+)", re.MULTILINE)


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

    def command(self, attempt: int) -> list[str]:
        """What runs in the container; it yields the processor to anything else."""
        return ["nice", "-n", "19", "python", "/build/inside.py", str(attempt)]

    def mounts(self) -> dict[str, tuple[str, str]]:
        """Folder of this machine to (folder inside, mode)."""
        return {
            str(self.work): ("/build", "rw"),
            str(self.toolkit): ("/toolkit", "ro"),
            str(self.tools): ("/tools", "ro"),
        }

    def argv(self, docker: tuple[str, ...], attempt: int) -> list[str]:
        """The same as `docker run` says it. Pure."""
        argv = [*docker, "run", "--rm", "--name", self.name, "--network", "none", "--user", self.user]
        argv += ["--memory", str(self.memory), "--init"]
        for folder, (inside, mode) in self.mounts().items():
            argv += ["--volume", f"{folder}:{inside}:{mode}"]
        for key, value in sorted(self.env.items()):
            argv += ["--env", f"{key}={value}"]
        return [*argv, self.image, *self.command(attempt)]


def environment(home: str, jobs: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of the build. Pure."""
    cuda = f"/toolkit/{home}"
    return {
        "CUDA_HOME": cuda,
        "PATH": f"{cuda}/bin:/tools/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": "/tools",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": "315532800",
        "MAX_JOBS": str(jobs),
        "HOME": "/tmp",  # noqa: S108  # in the container
        "LC_ALL": "C.UTF-8",
        **extra,
    }


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the container ended."""

    code: int
    out_of_memory: bool
    """As the engine saw it; `inside.py` sees it of the processes below it."""
    result: Mapping[str, Any]
    """What `inside.py` left, empty when it was killed."""


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
            attempt = len(list(job.work.glob("attempt-*.json"))) + 1
            result.unlink(missing_ok=True)
            log.write_bytes(b"")
            container = _create(client, job, attempt)
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
    return Ended(code=int(state["ExitCode"]), out_of_memory=bool(state.get("OOMKilled")), result=left)


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


def _create(client: DockerClient, job: Job, attempt: int) -> Container:
    return client.containers.create(
        job.image,
        job.command(attempt),
        name=job.name,
        environment=dict(job.env),
        volumes=[f"{folder}:{inside}:{mode}" for folder, (inside, mode) in job.mounts().items()],
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
        for step in _STEP.finditer(text[:whole].decode(errors="replace")):
            yield f"[{step[1]}/{step[2]}] {Path(step[3]).name}"
        if ended:
            return
        time.sleep(_POLL)


def failure(ended: Ended, log: Path, each: int) -> KnowngoodError:
    """The sentence for a compile that ended without a wheel: memory, or its last errors and what is known of them."""
    if ended.out_of_memory or ended.result.get("killed_for_memory"):
        return KnowngoodError(
            f"the compile was killed for want of memory ({each / 1e9:.1f} GB a job); run it again with fewer --jobs or "
            f"more --memory-per-job, finished objects are kept (log: {log})"
        )
    if ended.code in _KILLED and not ended.result:
        return KnowngoodError(
            f"the compile was stopped from outside; run it again, finished objects are kept (log: {log})"
        )
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [line.strip()[:300] for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(?i)\b(error|fatal)\b\s*:|\berror\b.*:", line)]
    last = "\n  ".join((errors or lines)[-6:]) or "it said nothing"
    return KnowngoodError(f"the compile failed (log: {log}):\n  {last}{_known(log)}")


def _known(log: Path) -> str:
    """What `diagnose` knows of the log, as further lines."""
    from knowngood import diagnose
    from knowngood.incident_files import read

    with log.open("rb") as opened:
        matches = diagnose.diagnose(opened, read()).matches
    lines = []
    for match in matches[:3]:
        fixes = "; ".join(str(fix["note"]) for fix in match.document()["fix"])
        lines.append(f"\nknown: {match.incident.title} [{match.incident.id}]" + (f"; fix: {fixes}" if fixes else ""))
    return "".join(lines)
