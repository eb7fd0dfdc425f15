"""From the names that a user gives to builders that answer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from knowngood.builders.builder import DOCKER, Builder, inspected
from knowngood.engines import embedded, sdk
from knowngood.engines import engine as engines
from knowngood.engines.engine import Engine
from knowngood.errors import KnowngoodError, MissingError, redacted
from knowngood.system import debian

HERE = "default"
"""The name of this machine's engine, as docker has it too."""
ANSWER_SECONDS = 20

Say = Callable[[str], None]


def find(names: Sequence[str], say: Say) -> tuple[tuple[Builder, ...], tuple[str, ...]]:
    """The builders of these names that answer, and a sentence for each that does not.

    Raises `MissingError` with all of the sentences when none does.
    """
    client = _client(say)
    found: list[Builder] = []
    silent: list[str] = []
    with ThreadPoolExecutor(min(8, len(names))) as pool:
        for name, answer in zip(names, pool.map(lambda name: _try(name, client, say), names), strict=True):
            if isinstance(answer, Builder):
                found.append(answer)
            else:
                silent.append(f"builder {name} is left out: {answer}")
    if not found:
        raise MissingError("\n".join([*silent, "no builder is left; `docker buildx ls` lists those that docker knows"]))
    return tuple(found), tuple(silent)


def answers(builder: Builder) -> bool:
    """Whether the builder still does."""
    try:
        if builder.engine:
            with sdk.client(as_engine(builder)) as client:
                return bool(client.ping())
        return inspected(_inspect(builder.buildx, builder.name)).running
    except KnowngoodError:
        return False


def as_engine(builder: Builder) -> Engine:
    """The builder, for what asks an engine; its answers are waited for shortly."""
    return _Quick(
        host=builder.host,
        docker=builder.buildx[:-1],
        env=builder.env,
        version=builder.version,
        buildkit=builder.buildkit,
        containerd_store=True,
        embedded=False,
        network="default" if builder.bridge else "host",
    )


class _Quick(Engine):
    def client(self, *, timeout: float = ANSWER_SECONDS) -> Any:
        return super().client(timeout=min(timeout, ANSWER_SECONDS))


def _try(name: str, client: Sequence[str], say: Say) -> Builder | str:
    try:
        return _find(name, client, say)
    except KnowngoodError as error:
        return redacted(str(error))


def _find(name: str, client: Sequence[str], say: Say) -> Builder:
    if name == HERE:
        return _engine(name, engines.ensure(say=say))
    if "://" in name:
        return _engine(name, engines.at(name))
    seen = inspected(_inspect(client, name))
    if seen.driver == DOCKER:
        return _engine(name, engines.at(_host(name), name))
    if not seen.running:
        raise MissingError(f"it does not answer ({seen.error}); `docker buildx inspect --bootstrap {name}` starts it")
    return Builder(
        name=name,
        buildx=tuple(client),
        options=("--builder", name),
        driver=seen.driver,
        buildkit=seen.buildkit,
        machine=name,
        memory=seen.memory,
        processors=seen.processors,
    )


def _engine(name: str, found: Engine | engines.Unsuitable) -> Builder:
    if isinstance(found, engines.Unsuitable):
        raise MissingError(found.reason)
    if not found.containerd_store:
        raise MissingError(
            f"the engine at {found.host} keeps no manifests, so its images have no digest to compare; "
            "turn its containerd image store on, or make a builder of it with `docker buildx create`"
        )
    builder = Builder(
        name=name,
        buildx=(*found.docker, "buildx"),
        env=found.env,
        driver=DOCKER,
        host=found.host,
        version=found.version,
        buildkit=found.buildkit,
        bridge=found.network != "host",
    )
    with sdk.client(as_engine(builder)) as client:
        said = client.info()
        bridge = bool(client.networks.list(names=["bridge"]))
    return replace(
        builder,
        machine=str(said.get("Name") or found.host),
        memory=said.get("MemTotal"),
        processors=said.get("NCPU"),
        bridge=bridge and builder.bridge,
    )


def _client(say: Say) -> tuple[str, ...]:
    """A command that has buildx, and the user's own settings of it: no engine of this machine is needed."""
    docker = shutil.which("docker")
    if docker and _run([docker, "buildx", "version"]).returncode == 0:
        return docker, "buildx"
    at = embedded.places()
    if not at.tools.exists() and debian.this_host():
        embedded.unpack(at, say)
    if not at.tools.exists():
        raise MissingError("there is no docker command with buildx here; install docker and its buildx plugin")
    return (str(at.buildx),)


def _host(context: str) -> str:
    """The address that a docker context names."""
    from docker.context import ContextAPI
    from docker.errors import DockerException

    try:
        found = ContextAPI.get_context(context)
    except (DockerException, OSError, ValueError) as error:
        raise MissingError(f"the docker context cannot be read: {error}") from None
    if found is None or not found.Host:
        raise MissingError("the docker context names no engine")
    return str(found.Host)


def _inspect(buildx: Sequence[str], name: str) -> str:
    done = _run([*buildx, "inspect", name])
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise MissingError(f"{said.removeprefix('ERROR: ')}")
    return done.stdout


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise MissingError(f"it does not answer within {ANSWER_SECONDS} s") from None
    except OSError as error:
        raise MissingError(f"{argv[0]} does not run: {error.strerror}") from None
