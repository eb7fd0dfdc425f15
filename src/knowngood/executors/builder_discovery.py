"""Finds the builders that a user names, and checks whether a builder still answers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from knowngood.base import debian_host
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError, redact_credentials
from knowngood.core.notify import Notify
from knowngood.engine import container_engine, unpacked_engine
from knowngood.engine.container_engine import Engine, UnsuitableEngine
from knowngood.executors.builder import ENGINE_DRIVER, Builder, parse_buildx_inspect

LOCAL_BUILDER = "default"
"""The name of this machine's engine; docker uses the same name."""
ANSWER_TIMEOUT_SECONDS = 20


def find_builders(names: Sequence[str], notify: Notify) -> tuple[tuple[Builder, ...], tuple[str, ...]]:
    """Return the builders that answer, and a sentence for each name that does not.

    Raises:
        MissingError: no builder answers; the message has all the sentences.
    """
    buildx = _find_buildx(notify)
    builders: list[Builder] = []
    reasons: list[str] = []
    with ThreadPoolExecutor(min(8, len(names))) as pool:
        answers = pool.map(lambda name: _find_builder_or_reason(name, buildx, notify), names)
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, Builder):
                builders.append(answer)
            else:
                reasons.append(f"builder {name} is left out: {answer}")
    if not builders:
        raise MissingError(
            "\n".join([*reasons, "no builder is left; `docker buildx ls` lists those that docker knows"])
        )
    return tuple(builders), tuple(reasons)


def builder_answers(builder: Builder) -> bool:
    """Return whether the builder answers now."""
    try:
        if builder.is_engine:
            with container_engine.docker_client(engine_from_builder(builder)) as client:
                return bool(client.ping())
        return parse_buildx_inspect(_inspect_instance(builder.buildx, builder.name)).running
    except KnowngoodError:
        return False


def engine_from_builder(builder: Builder) -> Engine:
    """Return the builder as an engine, for functions that query an engine; its requests have a short timeout."""
    return _ShortTimeoutEngine(
        host=builder.host,
        docker=builder.buildx[:-1],
        env=builder.env,
        version=builder.version,
        buildkit=builder.buildkit,
        containerd_store=True,
        embedded=False,
        network="default" if builder.has_bridge else "host",
    )


class _ShortTimeoutEngine(Engine):
    def client(self, *, timeout: float = ANSWER_TIMEOUT_SECONDS) -> Any:
        return super().client(timeout=min(timeout, ANSWER_TIMEOUT_SECONDS))


def _find_builder_or_reason(name: str, buildx: Sequence[str], notify: Notify) -> Builder | str:
    try:
        builder = _find_builder(name, buildx, notify)
        usage = _run_command([*builder.buildx, "bake", "--help"]).stdout
        return replace(builder, bake_has_allow="--allow" in usage)
    except KnowngoodError as error:
        return redact_credentials(str(error))


def _find_builder(name: str, buildx: Sequence[str], notify: Notify) -> Builder:
    if name == LOCAL_BUILDER:
        return _builder_from_engine(name, container_engine.ensure_engine(notify=notify))
    if "://" in name:
        return _builder_from_engine(name, container_engine.examine_engine(name))
    instance = parse_buildx_inspect(_inspect_instance(buildx, name))
    if instance.driver == ENGINE_DRIVER:
        return _builder_from_engine(name, container_engine.examine_engine(_context_address(name), name))
    if not instance.running:
        raise MissingError(
            f"it does not answer ({instance.error}); `docker buildx inspect --bootstrap {name}` starts it"
        )
    return Builder(
        name=name,
        buildx=tuple(buildx),
        options=("--builder", name),
        driver=instance.driver,
        buildkit=instance.buildkit,
        machine=name,
        memory=instance.memory,
        processors=instance.processors,
    )


def _builder_from_engine(name: str, engine: Engine | UnsuitableEngine) -> Builder:
    if isinstance(engine, UnsuitableEngine):
        raise MissingError(engine.reason)
    if not engine.containerd_store:
        raise MissingError(
            f"the engine at {engine.host} keeps no manifests, so its images have no digest to compare; "
            "turn on its containerd image store, or make it a builder with `docker buildx create`"
        )
    builder = Builder(
        name=name,
        buildx=(*engine.docker, "buildx"),
        env=engine.env,
        driver=ENGINE_DRIVER,
        host=engine.host,
        version=engine.version,
        buildkit=engine.buildkit,
        has_bridge=engine.network != "host",
    )
    with container_engine.docker_client(engine_from_builder(builder)) as client:
        info = client.info()
        has_bridge = bool(client.networks.list(names=["bridge"]))
    return replace(
        builder,
        machine=str(info.get("Name") or engine.host),
        memory=info.get("MemTotal"),
        processors=info.get("NCPU"),
        has_bridge=has_bridge and builder.has_bridge,
    )


def _find_buildx(notify: Notify) -> tuple[str, ...]:
    """Return a command that has buildx and the user's settings; it needs no engine on this machine."""
    docker = shutil.which("docker")
    if docker and _run_command([docker, "buildx", "version"]).returncode == 0:
        return docker, "buildx"
    paths = unpacked_engine.engine_paths()
    if not paths.tools.exists() and debian_host.detect_host():
        unpacked_engine.unpack_engine(paths, notify)
    if not paths.tools.exists():
        raise MissingError("there is no docker command with buildx here; install docker and its buildx plugin")
    return (str(paths.buildx),)


def _context_address(context: str) -> str:
    """Return the address of the engine that a docker context names."""
    from docker.context import ContextAPI
    from docker.errors import DockerException

    try:
        docker_context = ContextAPI.get_context(context)
    except (DockerException, OSError, ValueError) as error:
        raise MissingError(f"the docker context cannot be read: {error}") from None
    if docker_context is None or not docker_context.Host:
        raise MissingError("the docker context names no engine")
    return str(docker_context.Host)


def _inspect_instance(buildx: Sequence[str], name: str) -> str:
    process = _run_command([*buildx, "inspect", name])
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or ["buildx prints no reason"])[-1]
        raise MissingError(last_line.removeprefix("ERROR: "))
    return process.stdout


def _run_command(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            preexec_fn=end_with_parent(),
        )
    except subprocess.TimeoutExpired:
        raise MissingError(f"it does not answer within {ANSWER_TIMEOUT_SECONDS} s") from None
    except OSError as error:
        raise MissingError(f"{argv[0]} does not run: {error.strerror}") from None
