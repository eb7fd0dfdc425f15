"""The engine that builds and runs: the one that already answers, else the embedded one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import embedded
from knowngood.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from docker import DockerClient

OLDEST_BUILDKIT = (0, 13)
# Distributions build the engine without BuildKit's version; its release says which one it was made with.
BUILDKIT_OF_ENGINE = {23: "0.10", 24: "0.11", 25: "0.12", 26: "0.13", 27: "0.15", 28: "0.20", 29: "0.25"}
DEFAULT_SOCKET = Path("/var/run/docker.sock")
ANSWER_SECONDS = 15


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that answers, and how to talk to it."""

    host: str
    docker: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    version: str
    buildkit: str
    containerd_store: bool
    embedded: bool
    network: str

    def client(self, *, timeout: float = 600) -> DockerClient:
        """An SDK client; `timeout` is for one answer of the engine."""
        from docker import DockerClient  # 0.2 s

        if self.host == os.environ.get("DOCKER_HOST"):
            return DockerClient.from_env(timeout=int(timeout))
        return DockerClient(base_url=self.host, timeout=int(timeout), use_ssh_client=self.host.startswith("ssh:"))

    def environment(self) -> dict[str, str]:
        """The whole environment to run `docker` in."""
        return {**os.environ, **self.env}


@dataclass(frozen=True, kw_only=True)
class Unsuitable:
    """Why an engine is not used; `answers` tells one that is not suitable from none at all."""

    reason: str
    answers: bool


def ensure(*, say: Callable[[str], None]) -> Engine:
    """The system's engine if it is suitable, else the embedded one, brought up if it is not running."""
    system = find_system()
    if isinstance(system, Engine):
        return system
    if running := find_embedded():
        return running
    if reason := embedded.unsuitable():
        raise MissingError(f"{system.reason}, and {reason}")
    say(f"{system.reason}: using the embedded engine")
    embedded.up(say)
    if running := find_embedded():
        return running
    raise MissingError("the embedded engine came up and then stopped answering: see `knowngood engine status`")


def find_embedded() -> Engine | None:
    """The embedded engine if it is running."""
    at = embedded.places()
    answer = embedded.version(at)
    if answer is None or not at.docker.exists():
        return None
    embedded.configure_client(at)
    host = f"unix://{at.socket}"
    return Engine(
        host=host,
        docker=(str(at.docker), "--host", host),
        env={"DOCKER_CONFIG": str(at.docker_config), "DOCKER_HOST": host, "BUILDX_BUILDER": "default"},
        version=answer["version"],
        buildkit=buildkit_version("", answer["version"]),
        containerd_store=True,
        embedded=True,
        network="host",
    )


def find_system() -> Engine | Unsuitable:
    """The engine that DOCKER_HOST or the Docker context names, if it answers and is new enough."""
    if os.environ.get("DOCKER_HOST") == f"unix://{embedded.places().socket}":
        # `knowngood engine env` was evaluated in this shell: it is ours, and builds with the host's network.
        return find_embedded() or Unsuitable(reason="the embedded engine does not answer", answers=False)
    docker = shutil.which("docker")
    if docker is None:
        return Unsuitable(reason="there is no docker command on PATH", answers=False)
    context = "" if os.environ.get("DOCKER_HOST") else _ask([docker, "context", "show"])
    prefix = (docker,) if context in ("", "default") else (docker, "--context", context)
    host = os.environ.get("DOCKER_HOST") or _ask(
        [*prefix, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
    )
    host = host or f"unix://{DEFAULT_SOCKET}"
    info = parse_info(_ask([*prefix, "info", "--format", "{{json .}}"]))
    if info is None:
        return Unsuitable(reason=f"no engine answers at {host}", answers=False)
    if (info.os, info.arch) != ("linux", "x86_64"):
        return Unsuitable(
            reason=f"the engine at {host} is for {info.os} on {info.arch}, not for Linux on x86_64",
            answers=True,
        )
    builder = context or "default"
    env = {"BUILDX_BUILDER": builder}
    inspected = _ask([*prefix, "buildx", "inspect", builder], env=env)
    if not inspected:
        return Unsuitable(reason=f"the engine at {host} answers, but the docker command has no buildx", answers=True)
    buildkit = buildkit_version(inspected, info.version)
    if release(buildkit) < OLDEST_BUILDKIT:
        return Unsuitable(
            reason=f"the engine at {host} builds with BuildKit {buildkit}, older than 0.13 (Docker 26)",
            answers=True,
        )
    return Engine(
        host=host,
        docker=prefix,
        env=env,
        version=info.version,
        buildkit=buildkit,
        containerd_store=info.containerd_store,
        embedded=False,
        network="default",
    )


@dataclass(frozen=True, kw_only=True)
class Info:
    """What `docker info` says that matters here."""

    version: str
    os: str
    arch: str
    containerd_store: bool


def parse_info(text: str) -> Info | None:
    """Read `docker info --format '{{json .}}'`; None if no engine answered."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    if not values.get("ServerVersion"):
        return None
    driver = {pair[0]: pair[1] for pair in values.get("DriverStatus") or [] if len(pair) == 2}
    return Info(
        version=values["ServerVersion"],
        os=values.get("OSType", ""),
        arch=values.get("Architecture", ""),
        containerd_store=driver.get("driver-type", "").startswith("io.containerd.snapshotter"),
    )


def buildkit_version(inspected: str, engine: str) -> str:
    """BuildKit's version from `docker buildx inspect`; where that does not know it, from the engine's."""
    if (match := re.search(r"^BuildKit(?: version)?:\s*v?(\d+\.\d+\S*)", inspected, re.MULTILINE)) and release(
        match[1]
    ) > (0, 0):
        return match[1]
    major = release(engine)[0]
    known = [number for number in BUILDKIT_OF_ENGINE if number <= major]
    return BUILDKIT_OF_ENGINE[max(known)] if known else "0"


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    major, minor = [*numbers, 0, 0][:2]
    return major, minor


def shell(engine: Engine) -> str:
    """Lines for a shell after which `docker` there speaks to this engine."""
    folder = Path(engine.docker[0]).parent
    values = {**engine.env, "DOCKER_HOST": engine.host}
    lines = [f"export {name}='{value}'" for name, value in sorted(values.items())]
    return "\n".join([*lines, f"export PATH='{folder}':\"$PATH\""])


def _ask(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """What a command prints; empty if it fails or takes too long."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
