"""The engine that builds and runs: the one that already answers, else the embedded one."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.engines import embedded
from knowngood.engines.info import Info, buildkit_version, objection, parse_info
from knowngood.errors import MissingError
from knowngood.system import debian

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from docker import DockerClient

DEFAULT_HOST = "unix:///var/run/docker.sock"
ANSWER_SECONDS = 15


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that answers, and how to talk to it."""

    host: str
    docker: tuple[str, ...]
    """The docker command; empty for an engine that builds nothing."""
    env: Mapping[str, str] = field(default_factory=dict)
    version: str
    buildkit: str
    containerd_store: bool
    embedded: bool
    network: str

    def client(self, *, timeout: float = 600) -> DockerClient:
        """An SDK client; `timeout` is for one answer of the engine."""
        from docker import DockerClient  # it takes 0.2 s

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
    lacks_client: bool = False


@dataclass(frozen=True, kw_only=True)
class Client:
    """A docker command that has buildx, for one endpoint."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def ensure(*, say: Callable[[str], None], builds: bool = True) -> Engine:
    """The system's engine if it is suitable, else the embedded one, brought up if it is not running.

    One that only runs what is there (`builds` is false) needs no docker command, and may be older.
    """
    system = find_system(builds=builds)
    if isinstance(system, Unsuitable) and system.lacks_client and debian.this_host():
        say(f"{system.reason}: fetching one")
        embedded.unpack(embedded.places(), say)
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
    raise MissingError(f"the embedded engine came up and stopped answering: see {embedded.places().log}")


def find_embedded() -> Engine | None:
    """The embedded engine if it is running."""
    at = embedded.places()
    version = embedded.version(at)
    if version is None or not at.tools.exists():
        return None
    embedded.configure_client(at)
    host = f"unix://{at.socket}"
    return Engine(
        host=host,
        docker=(str(at.docker), "--host", host),
        env={"DOCKER_CONFIG": str(at.docker_config), "DOCKER_HOST": host, "BUILDX_BUILDER": "default"},
        version=version,
        buildkit=buildkit_version("", version),
        containerd_store=True,
        embedded=True,
        network="host",
    )


def find_system(*, builds: bool = True) -> Engine | Unsuitable:
    """The engine that DOCKER_HOST or the Docker context names, if it answers and is new enough."""
    host, context = _endpoint()
    if host == f"unix://{embedded.places().socket}":
        # `knowngood engine env` was evaluated in this shell: it is ours, and builds with the host's network.
        return find_embedded() or Unsuitable(reason="the embedded engine does not answer", answers=False)
    return at(host, context, builds=builds)


def at(host: str, context: str = "", *, builds: bool = True) -> Engine | Unsuitable:
    """The engine at an address, which a Docker context may have given, if it answers and is new enough."""
    info = _info(host)
    if info is None:
        return Unsuitable(reason=f"no engine answers at {host}", answers=False)
    client = _client(host, context) if builds else Client(argv=(), env={})
    if client is None:
        reason = f"the engine at {host} answers, but there is no docker command with buildx"
        return Unsuitable(reason=reason, answers=True, lacks_client=True)
    inspected = _ask([*client.argv, "buildx", "inspect"], env=client.env) if builds else ""
    buildkit = buildkit_version(inspected, info.version)
    if objected := objection(host, info, buildkit if builds else None):
        return Unsuitable(reason=objected, answers=True)
    return Engine(
        host=host,
        docker=client.argv,
        env=client.env,
        version=info.version,
        buildkit=buildkit,
        containerd_store=info.containerd_store,
        embedded=False,
        network="default",
    )


def shell(engine: Engine) -> str:
    """Lines for a shell after which `docker` there speaks to this engine."""
    values = {**engine.env, "DOCKER_HOST": engine.host}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(values.items())]
    return "\n".join([*lines, f'export PATH={shlex.quote(str(Path(engine.docker[0]).parent))}:"$PATH"'])


def _endpoint() -> tuple[str, str]:
    """The engine that the environment names: its address, and the Docker context if that gives it."""
    if host := os.environ.get("DOCKER_HOST"):
        return host, ""
    docker = shutil.which("docker")
    if docker is None:
        return DEFAULT_HOST, ""
    context = _ask([docker, "context", "show"])
    host = _ask([docker, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"])
    return host or DEFAULT_HOST, "" if context == "default" else context


def _info(host: str) -> Info | None:
    """Ask the engine itself; no docker command is needed for that."""
    from docker.errors import DockerException

    from docker import DockerClient  # it takes 0.2 s

    if host.startswith("unix://") and not Path(host.removeprefix("unix://")).exists():
        return None
    try:
        if host == os.environ.get("DOCKER_HOST"):
            client = DockerClient.from_env(timeout=ANSWER_SECONDS)
        else:
            client = DockerClient(base_url=host, timeout=ANSWER_SECONDS, use_ssh_client=host.startswith("ssh:"))
        with contextlib.closing(client):
            return parse_info(json.dumps(client.info()))
    except (DockerException, OSError):
        return None


def _client(host: str, context: str) -> Client | None:
    """The docker command on PATH if it has buildx, else the one unpacked for the embedded engine."""
    env = {"BUILDX_BUILDER": context or "default"}
    docker = shutil.which("docker")
    if docker and _ask([docker, "buildx", "version"]):
        return Client(argv=(docker, "--context", context) if context else (docker, "--host", host), env=env)
    at = embedded.places()
    if not at.tools.exists():
        return None
    embedded.configure_client(at)
    return Client(
        argv=(str(at.docker), "--host", host),
        env={"DOCKER_CONFIG": str(at.docker_config), "BUILDX_BUILDER": "default"},
    )


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
