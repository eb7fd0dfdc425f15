"""`knowngood smoke`: runs the suite in a cell's image through the SDK, or in the environment at hand."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.cell import Cell
from knowngood.engines import sdk
from knowngood.engines.info import release
from knowngood.errors import KnowngoodError, MissingError
from knowngood.evidence import Evidence, Where

if TYPE_CHECKING:
    from docker.models.containers import Container

    from docker import DockerClient
    from knowngood.engines.engine import Engine

SUITE_IN_IMAGE = "/opt/knowngood/smoke_tests"
_FOLDER = "/tmp/knowngood"  # noqa: S108  # in the container, which is ours alone
_SHM = "1g"
_LABEL = "io.knowngood.smoke"
_CDI = "nvidia.com/gpu="
_CDI_BY_DEFAULT = (28, 2)
"""Docker releases from then on read CDI unasked and say what they found (moby/moby#49963, #49980)."""
TIMED_OUT = (124, 137)
"""Exit codes of `timeout` in the container: it has stopped the suite, or had to kill it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the suite runs."""

    quick: bool = False
    gpus: bool = False
    """Give the container every GPU of the host, and demand that one is there."""
    seconds: int = 1200
    """The suite's time; it is stopped inside the container after that, and from outside a little later."""
    memory: str = "12g"
    pids: int = 1024


def asked(options: Options, *, cell_gpu: str) -> list[str]:
    """What the suite is asked for, wherever it reports. Pure."""
    argv = ["-q", "-p", "no:cacheprovider"]
    if options.quick:
        argv.append("--quick")
    if options.gpus:
        argv += ["--demand-gpu", "--cell-gpu", cell_gpu]
    return argv


def arguments(options: Options, folder: str, *, cell_gpu: str) -> list[str]:
    """The suite's own arguments, for a report in `folder`. Pure."""
    return [*asked(options, cell_gpu=cell_gpu), *_reporting(folder)]


def _reporting(folder: str) -> list[str]:
    return ["--report", f"{folder}/report.json", "--predictions", f"{folder}/predictions.json"]


def command(cell: Cell, options: Options) -> list[str]:
    """What runs in the container, under a timeout of its own. Pure."""
    return inside(asked(options, cell_gpu=cell.gpu), options.seconds)


def inside(asked: Sequence[str], seconds: int) -> list[str]:
    """The container's command, for what the suite is asked. Pure."""
    limit = ["timeout", "--kill-after=10", str(seconds)]
    return [*limit, "python", "-m", "pytest", SUITE_IN_IMAGE, *asked, *_reporting(_FOLDER)]


def run_options(options: Options) -> list[str]:
    """What `_create` asks of the engine, as `docker run` says it. Pure."""
    argv = ["--network", "none", "--memory", options.memory, "--pids-limit", str(options.pids)]
    argv += ["--shm-size", _SHM, "--init", "--env", "HF_HUB_OFFLINE=1"]
    return [*argv, "--gpus", "all"] if options.gpus else argv


def in_container(  # noqa: PLR0913
    cell: Cell,
    image: str,
    digest: str,
    engine: Engine,
    options: Options,
    *,
    predictions: Mapping[str, Any],
    log: Path,
    say: Callable[[str], None],
) -> Evidence:
    """Run the suite in a container of `image` (no network, limits on memory, processes and time).

    Raises `MissingError` when the engine has no NVIDIA runtime and one was asked for, `KnowngoodError` when the suite
    left no report. The container is removed whatever happens.
    """
    words = command(cell, options)
    with sdk.client(engine) as client:
        _clear(client, cell)
        container = create(client, image, words, options, labels={_LABEL: _label(cell)})
        try:
            give(container, predictions)
            start(container, engine)
            _follow(container, options, log, say)
            report = _report(container, log)
        finally:
            container.remove(force=True, v=True)
    return Evidence(
        cell=str(cell),
        where=Where.CONTAINER_GPU if options.gpus else Where.CONTAINER_CPU,
        image=digest,
        when=_now(),
        node=node(engine),
        command=tuple(words),
        report=report,
    )


def here(  # noqa: PLR0913
    cell: Cell,
    suite: Path,
    options: Options,
    *,
    predictions: Mapping[str, Any],
    log: Path,
    say: Callable[[str], None],
) -> Evidence:
    """Run the suite with the Python that `VIRTUAL_ENV` or PATH names, without a container."""
    with tempfile.TemporaryDirectory(prefix="knowngood-") as folder:
        python = _python_here()
        (Path(folder) / "predictions.json").write_text(json.dumps(predictions))
        argv = [python, "-m", "pytest", str(suite), *arguments(options, folder, cell_gpu=cell.gpu)]
        say(f"running the suite with {python}")
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        with log.open("w") as out:
            try:
                subprocess.run(
                    argv, env=environment, stdout=out, stderr=subprocess.STDOUT, timeout=options.seconds, check=False
                )
            except subprocess.TimeoutExpired:
                raise KnowngoodError(f"the suite did not end within {options.seconds} s (log: {log})") from None
        path = Path(folder) / "report.json"
        if not path.exists():
            raise KnowngoodError(f"the suite left no report; {_last_line(log)} (log: {log})")
        report = _read(path.read_bytes(), log)
    return Evidence(
        cell=str(cell),
        where=Where.BARE,
        image=None,
        when=_now(),
        node=fingerprint(platform.node(), {"kernel": platform.release(), "cpus": os.cpu_count()}),
        command=("python", "-m", "pytest", "smoke_tests", *argv[4:]),
        report=report,
    )


def _python_here() -> str:
    named = os.environ.get("VIRTUAL_ENV")
    return str(Path(named) / "bin/python") if named else sys.executable


def _label(cell: Cell) -> str:
    return f"{platform.node()}/{cell}"


def _clear(client: DockerClient, cell: Cell) -> None:
    """Remove the container of a run that was killed: of one cell, one run at a time is at work on this machine."""
    for left in client.containers.list(all=True, filters={"label": f"{_LABEL}={_label(cell)}"}):
        left.remove(force=True, v=True)


def create(  # noqa: PLR0913
    client: DockerClient,
    image: str,
    command: list[str],
    options: Options,
    *,
    labels: Mapping[str, str],
    device: str | None = None,
) -> Container:
    """A container for the suite: no network, limits on memory and processes, all GPUs or one `device`."""
    from docker.types import DeviceRequest

    wanted = [DeviceRequest(**gpu_request(client.info(), device))] if options.gpus else None
    return client.containers.create(
        image,
        command,
        device_requests=wanted,
        environment={"HF_HUB_OFFLINE": "1"},
        network_mode="none",
        mem_limit=options.memory,
        pids_limit=options.pids,
        shm_size=_SHM,
        init=True,
        labels=dict(labels),
    )


def gpu_request(info: Mapping[str, Any], device: str | None) -> dict[str, Any]:
    """How an engine (`info`, as it answers for itself) is asked for all GPUs, or for one. Pure.

    By NVIDIA's runtime where the engine lists it, else by CDI (a description of devices, which `nvidia-ctk cdi
    generate` writes) where it knows NVIDIA's. Docker 28.2 and newer list what they discovered; 25 to 28.1 read CDI
    where `features.cdi` asks for it, and name the folders only.
    """
    told = (str(value) for item in info.get("DiscoveredDevices") or () for value in item.values())
    opted_in = bool(info.get("CDISpecDirs")) and release(str(info.get("ServerVersion"))) < _CDI_BY_DEFAULT
    cdi = opted_in or any(value.startswith(_CDI) for value in told)
    if cdi and "nvidia" not in (info.get("Runtimes") or {}):
        return {"driver": "cdi", "device_ids": [f"{_CDI}{'all' if device is None else device}"]}
    which = {"count": -1} if device is None else {"device_ids": [device]}
    return {**which, "capabilities": [["gpu"]]}


def give(container: Container, predictions: Mapping[str, Any]) -> None:
    """The folder that the suite reports to, with what it is expected to say."""
    container.put_archive("/tmp", _archive({"predictions.json": json.dumps(predictions)}))  # noqa: S108


def start(container: Container, engine: Engine) -> None:
    """Start it; `MissingError` when the engine has no GPU to give."""
    from docker.errors import APIError

    try:
        container.start()
    except APIError as error:
        said = str(error.explanation or error)
        if "could not select device driver" in said or "nvidia" in said.lower():
            raise MissingError(
                f"the engine at {engine.host} cannot give a container a GPU ({said}); "
                "install the NVIDIA container toolkit and restart the engine, or leave --gpus out"
            ) from None
        raise KnowngoodError(f"the container did not start: {said}") from None


def _follow(container: Container, options: Options, log: Path, say: Callable[[str], None]) -> None:
    """Wait for the container's end; one that outlives its inner timeout is killed by `remove(force)`."""
    import requests

    say("running the suite")
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        ended = container.wait(timeout=options.seconds + 30)
    except requests.exceptions.RequestException as error:
        if "timed out" not in str(error):  # it is the engine that has gone
            raise
        log.write_bytes(container.logs(tail=2000))
        raise KnowngoodError(f"the container did not end within {options.seconds + 30} s (log: {log})") from None
    log.write_bytes(container.logs())
    container.reload()
    if container.attrs["State"].get("OOMKilled"):
        raise KnowngoodError(f"the suite was killed at {options.memory} of memory; --memory gives more (log: {log})")
    if ended["StatusCode"] in TIMED_OUT:
        raise KnowngoodError(f"the suite did not end within {options.seconds} s (log: {log})")


def _report(container: Container, log: Path) -> dict[str, Any]:
    data = report_of(container)
    if data is None:
        raise KnowngoodError(f"the suite left no report; {_last_line(log)} (log: {log})")
    return _read(data, log)


def report_of(container: Container) -> bytes | None:
    """The report in a container, which may have ended; `None` where there is none."""
    from docker.errors import NotFound

    try:
        chunks, _ = container.get_archive(f"{_FOLDER}/report.json")
    except NotFound:
        return None
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        member = archive.extractfile("report.json")
        assert member is not None  # noqa: S101
        return member.read()


def _read(data: bytes, log: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise KnowngoodError(f"the suite left a damaged report ({error}); {_last_line(log)} (log: {log})") from None
    return report


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return "its last words: " + next((line for line in reversed(lines) if line.strip()), "none")


def _archive(files: Mapping[str, str]) -> bytes:
    """A tar with the folder that the suite writes to (open to any user of the container) and these files in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo(Path(_FOLDER).name)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o777
        archive.addfile(folder)
        for name, text in files.items():
            data = text.encode()
            member = tarfile.TarInfo(f"{folder.name}/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def node(engine: Engine) -> dict[str, Any]:
    """The fingerprint of the machine that the engine runs containers on."""
    with sdk.client(engine) as client:
        info = client.info()
    facts = {
        "kernel": info["KernelVersion"],
        "cpus": info["NCPU"],
        "memory": info["MemTotal"],
        "engine": info["ServerVersion"],
        "runtime": info["DefaultRuntime"],
    }
    return fingerprint(str(info["Name"]), facts)


def fingerprint(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What may matter of a machine; its name only as a hash, since evidence is public."""
    return {"name": hashlib.sha256(name.encode()).hexdigest()[:12], **facts}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
