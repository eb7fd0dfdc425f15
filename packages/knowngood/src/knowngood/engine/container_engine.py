"""Finds the engine that builds and runs (one that already answers, or else the embedded one), and connects to it.

What an engine reports about itself, and whether it can build or run our images.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.base import debian_host
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError, failure_from_output
from knowngood.core.hosts import HostArchitecture
from knowngood.core.notify import Notify
from knowngood.engine import docker_logins, embedded_engine, unpacked_engine

if TYPE_CHECKING:
    from docker import DockerClient

OLDEST_BUILDKIT = (0, 13)
# Distributions build the engine without BuildKit's version number; the engine's own major version implies it.
BUILDKIT_OF_ENGINE = {23: "0.10", 24: "0.11", 25: "0.12", 26: "0.13", 27: "0.15", 28: "0.20", 29: "0.25"}


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """The part of `docker info` that matters here."""

    version: str
    os: str
    arch: str
    containerd_store: bool


def describe_objection(host: str, info: EngineInfo, buildkit: str | None) -> str | None:
    """Return why an engine that answers cannot build our images, or run them (`buildkit` is None); None if it can."""
    if info.os != "linux" or info.arch not in {name.machine for name in HostArchitecture}:
        return f"the engine at {host} is for {info.os} on {info.arch}, not for Linux on x86_64 or aarch64"
    if buildkit is not None and parse_release(buildkit) < OLDEST_BUILDKIT:
        return f"the engine at {host} builds with BuildKit {buildkit}, older than 0.13 (Docker 26)"
    return None


def parse_engine_info(text: str) -> EngineInfo | None:
    """Parse the JSON of `docker info`; None if it is no answer of an engine."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    if not isinstance(values, dict) or not values.get("ServerVersion"):
        return None
    driver = {pair[0]: pair[1] for pair in values.get("DriverStatus") or [] if len(pair) == 2}
    return EngineInfo(
        version=values["ServerVersion"],
        os=values.get("OSType", ""),
        arch=values.get("Architecture", ""),
        containerd_store=driver.get("driver-type", "").startswith("io.containerd.snapshotter"),
    )


def buildkit_version(inspected: str, engine: str) -> str:
    """Return BuildKit's version from `docker buildx inspect`, or else from the engine's version."""
    match = re.search(r"^BuildKit(?: version)?:\s*v?(\d+\.\d+\S*)", inspected, re.MULTILINE)
    if match and parse_release(match[1]) > (0, 0):
        return match[1]
    known = [number for number in BUILDKIT_OF_ENGINE if number <= parse_release(engine)[0]]
    return BUILDKIT_OF_ENGINE[max(known)] if known else "0"


def parse_release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    major, minor, *_ = [*map(int, re.findall(r"\d+", version)[:2]), 0, 0]
    return major, minor


DEFAULT_HOST = "unix:///var/run/docker.sock"
ANSWER_SECONDS = 15


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that answers, and how to reach it."""

    host: str
    docker: tuple[str, ...]
    """The docker command; empty where this machine has none, which only an engine that builds nothing may lack."""
    env: Mapping[str, str] = field(default_factory=dict)
    version: str
    buildkit: str
    containerd_store: bool
    embedded: bool
    network: str
    """The network of build steps, also on a builder that is not the engine."""
    builder: str = ""
    """The buildx builder that builds in place of the engine and sends it the image; empty for the engine's own."""

    def client(self, *, timeout: float = 600) -> DockerClient:
        """Return an SDK client; `timeout` is the time in seconds for one answer of the engine."""
        return _open_client(self.host, int(timeout))

    def environment(self) -> dict[str, str]:
        """Return the complete environment for the `docker` command."""
        return {**os.environ, **self.env}


@dataclass(frozen=True, kw_only=True)
class UnsuitableEngine:
    """Why an engine is not used. `answers` is false where there is no engine at all."""

    reason: str
    answers: bool
    lacks_client: bool = False


@dataclass(frozen=True, kw_only=True)
class DockerCommand:
    """A docker command for one endpoint; one that builds has buildx."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def ensure_engine(*, notify: Notify, builds: bool = True) -> Engine:
    """Return the system's engine if it is suitable, else the embedded one, which is started if it is not running.

    An engine that only runs existing images (`builds` is false) needs no docker command, and may be older.

    Raises:
        MissingError: neither engine can be used.
    """
    system = find_system_engine(builds=builds)
    if isinstance(system, UnsuitableEngine) and system.lacks_client and debian_host.detect_host():
        notify(f"{system.reason}: fetching one")
        unpacked_engine.unpack_engine(unpacked_engine.engine_paths(), notify)
        system = find_system_engine()
    if isinstance(system, Engine):
        return system
    if running := find_embedded_engine():
        if os.environ.get("DOCKER_HOST"):
            notify(f"{system.reason}, which DOCKER_HOST names: using the embedded engine")
        return running
    if reason := embedded_engine.describe_obstacle():
        raise MissingError(f"{system.reason}, and {reason}")
    notify(f"{system.reason}: using the embedded engine")
    embedded_engine.start_embedded_engine(notify)
    if running := find_embedded_engine():
        return running
    raise MissingError(f"the embedded engine started and stopped answering: see {unpacked_engine.engine_paths().log}")


def use_builder(engine: Engine, name: str) -> Engine:
    """Return the engine with a builder of buildx that builds its images; the engine's own builder changes nothing.

    Where the engine is not running, as in a dry run, buildx is not asked for the builder.

    Raises:
        MissingError: buildx has no builder of this name, it is not running, or it is another engine.
    """
    if name == engine.env.get("BUILDX_BUILDER", "default"):
        return engine
    # The embedded engine's client has a private DOCKER_CONFIG; builders are in the user's own.
    user_config = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    env = {**engine.env, "BUILDX_CONFIG": os.environ.get("BUILDX_CONFIG") or str(user_config / "buildx")}
    if not engine.version:
        return replace(engine, builder=name, env=env)
    inspected = _read_output([*engine.docker, "buildx", "inspect", name], env=env)
    driver = re.search(r"^Driver:[ \t]*(\S*)", inspected, re.MULTILINE)
    if driver is None:
        raise MissingError(
            f"buildx has no builder {name}, or it does not answer; `docker buildx ls` lists those there are, and "
            f"`docker buildx create --name {name} --driver DRIVER ...` makes one"
        )
    if driver[1] in ("docker", ""):  # empty where that engine does not answer
        raise MissingError(
            f"builder {name} is the engine of another Docker context, and its images would stay there; "
            f"set DOCKER_CONTEXT={name} and leave out --builder"
        )
    if problem := re.search(r"^(?:Error:\s+(.+)|Status:\s+(?!running)(\S+))$", inspected, re.MULTILINE):
        raise MissingError(
            f"builder {name} is not running ({problem[1] or problem[2]}); `docker buildx inspect --bootstrap {name}` "
            "starts it"
        )
    return replace(engine, builder=name, env=env, buildkit=buildkit_version(inspected, engine.version))


def find_running_engine(*, builds: bool = True) -> Engine | None:
    """Return the system's engine if it is suitable, else the embedded one if it is running; starts none."""
    system = find_system_engine(builds=builds)
    return system if isinstance(system, Engine) else find_embedded_engine()


def find_embedded_engine() -> Engine | None:
    """Return the embedded engine if it is running."""
    paths = unpacked_engine.engine_paths()
    version = embedded_engine.read_engine_version(paths)
    if version is None or not paths.tools.exists():
        return None
    unpacked_engine.configure_docker_client(paths)
    host = f"unix://{paths.socket}"
    return Engine(
        host=host,
        docker=(str(paths.docker), "--host", host),
        env={"DOCKER_CONFIG": str(paths.docker_config), "DOCKER_HOST": host, "BUILDX_BUILDER": "default"},
        version=version,
        buildkit=buildkit_version("", version),
        containerd_store=True,
        embedded=True,
        network="host",
    )


def find_system_engine(*, builds: bool = True) -> Engine | UnsuitableEngine:
    """Return the engine that DOCKER_HOST or the Docker context names, if it answers and is new enough."""
    host, context = _named_endpoint()
    if host == f"unix://{unpacked_engine.engine_paths().socket}":
        # `knowngood engine env` was evaluated in this shell: this is the embedded one, which builds with host network.
        return find_embedded_engine() or UnsuitableEngine(reason="the embedded engine does not answer", answers=False)
    return examine_engine(host, context, builds=builds)


def examine_engine(host: str, context: str = "", *, builds: bool = True) -> Engine | UnsuitableEngine:
    """Return the engine at an address if it answers and is new enough; `context` is the Docker context with it."""
    info = _read_engine_info(host)
    if info is None:
        socket = host.removeprefix("unix://")
        if os.path.exists(socket) and not os.access(socket, os.W_OK):  # noqa: PTH110 - False where it may not be seen
            reason = f"this user may not use the engine at {host}; join the group that owns its socket"
            return UnsuitableEngine(reason=reason, answers=False)
        return UnsuitableEngine(reason=f"no engine answers at {host}", answers=False)
    client = _find_docker_command(host, context, builds=builds)
    if builds and not client.argv:
        reason = f"the engine at {host} answers, but there is no docker command with buildx"
        return UnsuitableEngine(reason=reason, answers=True, lacks_client=True)
    inspected = _read_output([*client.argv, "buildx", "inspect"], env=client.env) if builds else ""
    buildkit = buildkit_version(inspected, info.version)
    if objection := describe_objection(host, info, buildkit if builds else None):
        return UnsuitableEngine(reason=objection, answers=True)
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


def render_shell_environment(engine: Engine) -> str:
    """Return lines for a shell, after which its `docker` command uses this engine."""
    values = {**engine.env, "DOCKER_HOST": engine.host}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(values.items())]
    return "\n".join([*lines, f'export PATH={shlex.quote(str(Path(engine.docker[0]).parent))}:"$PATH"'])


def _named_endpoint() -> tuple[str, str]:
    """Return the address of the engine that the environment names, and the Docker context if that names it."""
    if host := os.environ.get("DOCKER_HOST"):
        return host, ""
    docker = shutil.which("docker")
    if docker is None:
        return DEFAULT_HOST, ""
    context = _read_output([docker, "context", "show"])
    host = _read_output([docker, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"])
    return host or DEFAULT_HOST, "" if context == "default" else context


def _read_engine_info(host: str) -> EngineInfo | None:
    """Return what the engine at an address reports about itself, None if none answers. No docker command is needed."""
    from docker.errors import DockerException

    if host.startswith("unix://") and not os.path.exists(host.removeprefix("unix://")):  # noqa: PTH110 - no exception
        return None
    try:
        with contextlib.closing(_open_client(host, ANSWER_SECONDS)) as client:
            return parse_engine_info(json.dumps(client.info()))
    except (DockerException, OSError):
        return None


def _open_client(host: str, timeout: int) -> DockerClient:
    from docker import DockerClient  # takes 0.2 s to import

    docker_logins.check_docker_config()  # the client reads it
    if host == os.environ.get("DOCKER_HOST"):
        return DockerClient.from_env(timeout=timeout)
    return DockerClient(base_url=host, timeout=timeout, use_ssh_client=host.startswith("ssh:"))


def _find_docker_command(host: str, context: str, *, builds: bool) -> DockerCommand:
    """Return the docker command on PATH, with buildx if it `builds`, else the one unpacked for the embedded engine.

    Where there is neither, the command is empty.
    """
    env = {"BUILDX_BUILDER": context or "default"}
    docker = shutil.which("docker")
    if docker and (not builds or _read_output([docker, "buildx", "version"])):
        return DockerCommand(argv=(docker, "--context", context) if context else (docker, "--host", host), env=env)
    paths = unpacked_engine.engine_paths()
    if not paths.tools.exists():
        return DockerCommand(argv=(), env={})
    unpacked_engine.configure_docker_client(paths)
    return DockerCommand(
        argv=(str(paths.docker), "--host", host),
        env={"DOCKER_CONFIG": str(paths.docker_config), "BUILDX_BUILDER": "default"},
    )


def _read_output(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """Return what a command prints; an empty text if it fails or takes too long."""
    try:
        result = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            preexec_fn=end_with_parent(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def refusal_error(engine: Engine, explanation: str) -> KnowngoodError:
    """Return the error for a request that an engine refuses with this explanation."""
    return failure_from_output(f"the engine at {engine.host} refused: {explanation}", explanation)


@contextlib.contextmanager
def docker_client(engine: Engine) -> Iterator[DockerClient]:
    """Give a client of the engine, which is closed afterwards.

    Raises:
        MissingError: the engine does not answer, or stops answering, or its disk is full.
        KnowngoodError: the engine refuses a request; the message has its explanation.
    """
    from docker.errors import APIError, DockerException
    from requests import RequestException

    try:
        with contextlib.closing(engine.client()) as client:
            yield client
    except APIError as error:
        raise refusal_error(engine, str(error.explanation or error)) from None
    except (DockerException, RequestException) as error:
        raise MissingError(
            f"the engine at {engine.host} does not answer ({error}); `knowngood engine status` says more, "
            "`knowngood engine up` starts the embedded one"
        ) from None
