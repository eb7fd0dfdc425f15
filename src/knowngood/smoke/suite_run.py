"""Runs the smoke suite in a container of a cell's image, or in the current Python environment."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.core import local_files
from knowngood.core.cell import Cell
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.smoke import suite_files
from knowngood.smoke.suite_command import (
    CONTAINER_FOLDER,
    SHARED_MEMORY,
    TIMED_OUT,
    SuiteOptions,
    container_command,
    gpu_request,
    reporting_arguments,
)

if TYPE_CHECKING:
    from docker.models.containers import Container

    from docker import DockerClient
    from knowngood.engine.container_engine import Engine

_LABEL = "io.knowngood.smoke"


def run_in_container(  # noqa: PLR0913
    cell: Cell,
    image: str,
    digest: str,
    engine: Engine,
    options: SuiteOptions,
    *,
    suite: Path,
    predictions: Mapping[str, Any],
    log: Path,
    notify: Notify,
) -> Evidence:
    """Run a suite in a container of `image`, without network and with limits on memory, processes and time.

    `digest` is that of the image, for the evidence; `suite` is the folder of the suite, which is copied into the
    container. The container is always removed.

    Raises:
        MissingError: a GPU was asked for, and the engine cannot give one.
        KnowngoodError: the suite left no report.
    """
    argv = container_command(cell, options)
    with container_engine.docker_client(engine) as client:
        label = f"{platform.node()}/{cell}"
        remove_old_containers(client, _LABEL, label)
        container = create_suite_container(client, image, argv, options, labels={_LABEL: label})
        try:
            put_suite(container, suite, predictions)
            start_suite_container(container, engine)
            _wait_for_suite(container, options, log, notify)
            report = _take_report(container, log)
        finally:
            container.remove(force=True, v=True)
    return Evidence(
        cell=str(cell),
        where=RunPlace.CONTAINER_GPU if options.gpus else RunPlace.CONTAINER_CPU,
        image=digest,
        when=_now(),
        node=engine_fingerprint(engine),
        command=tuple(argv),
        report=report,
    )


def run_in_environment(  # noqa: PLR0913
    cell: Cell,
    suite: Path,
    options: SuiteOptions,
    *,
    predictions: Mapping[str, Any],
    log: Path,
    notify: Notify,
) -> Evidence:
    """Run the suite without a container, with the Python of `VIRTUAL_ENV`, or else with this program's."""
    with local_files.scratch_folder() as folder:
        python = _environment_python()
        (folder / "predictions.json").write_text(json.dumps(predictions))
        argv = [python, "-m", "pytest", str(suite), *reporting_arguments(options, str(folder), cell_gpu=cell.gpu)]
        notify(f"running the suite with {python}")
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        with log.open("w") as output:
            try:
                subprocess.run(
                    argv,
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=options.seconds,
                    check=False,
                    preexec_fn=end_with_parent(),
                )
            except subprocess.TimeoutExpired:
                raise KnowngoodError(f"the suite did not end within {options.seconds} s (log: {log})") from None
        path = Path(folder) / "report.json"
        if not path.exists():
            raise KnowngoodError(f"the suite left no report; {_last_line(log)} (log: {log})")
        report = _parse_report(path.read_bytes(), log)
    return Evidence(
        cell=str(cell),
        where=RunPlace.BARE,
        image=None,
        when=_now(),
        node=machine_fingerprint(platform.node(), {"kernel": platform.release(), "cpus": os.cpu_count()}),
        command=("python", "-m", "pytest", "smoke_tests", *argv[4:]),
        report=report,
    )


def _environment_python() -> str:
    folder = os.environ.get("VIRTUAL_ENV")
    return str(Path(folder) / "bin/python") if folder else sys.executable


def remove_old_containers(client: DockerClient, label: str, value: str) -> None:
    """Remove the containers of runs that were killed, by their label; one run at a time has this value."""
    for container in client.containers.list(all=True, filters={"label": f"{label}={value}"}):
        container.remove(force=True, v=True)


def create_suite_container(  # noqa: PLR0913
    client: DockerClient,
    image: str,
    command: list[str],
    options: SuiteOptions,
    *,
    labels: Mapping[str, str],
    device: str | None = None,
) -> Container:
    """Create a container for the suite: no network, limits on memory and processes, all GPUs or one `device`."""
    from docker.types import DeviceRequest

    requests = [DeviceRequest(**gpu_request(client.info(), device))] if options.gpus else None
    return client.containers.create(
        image,
        command,
        device_requests=requests,
        environment={"HF_HUB_OFFLINE": "1"},
        network_mode="none",
        mem_limit=options.memory,
        pids_limit=options.pids,
        shm_size=SHARED_MEMORY,
        init=True,
        labels=dict(labels),
    )


def put_suite(container: Container, suite: Path, predictions: Mapping[str, Any]) -> None:
    """Put the folder for the report into the container, with the suite and its predictions in it."""
    files = {"predictions.json": json.dumps(predictions).encode(), **suite_files.read_suite_files(suite)}
    container.put_archive("/tmp", _tar_folder(files))  # noqa: S108


def start_suite_container(container: Container, engine: Engine) -> None:
    """Start the container; raises `MissingError` when the engine cannot give it a GPU."""
    from docker.errors import APIError

    try:
        container.start()
    except APIError as error:
        reason = str(error.explanation or error)
        if "could not select device driver" in reason or "nvidia" in reason.lower():
            raise MissingError(
                f"the engine at {engine.host} cannot give a container a GPU ({reason}); "
                "install the NVIDIA container toolkit and restart the engine, or run without --gpus"
            ) from None
        raise KnowngoodError(f"the container did not start: {reason}") from None


def _wait_for_suite(container: Container, options: SuiteOptions, log: Path, notify: Notify) -> None:
    """Wait until the container ends. One that outlives its own time limit is killed when it is removed."""
    import requests

    notify("running the suite")
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        status = container.wait(timeout=options.seconds + 30)
    except requests.exceptions.RequestException as error:
        if "timed out" not in str(error):  # the engine itself has stopped answering
            raise
        log.write_bytes(container.logs(tail=2000))
        raise KnowngoodError(f"the container did not end within {options.seconds + 30} s (log: {log})") from None
    log.write_bytes(container.logs())
    container.reload()
    if container.attrs["State"].get("OOMKilled"):
        raise KnowngoodError(
            f"the suite was killed because it used more than {options.memory} of memory; raise --memory (log: {log})"
        )
    if status["StatusCode"] in TIMED_OUT:
        raise KnowngoodError(f"the suite did not end within {options.seconds} s (log: {log})")


def _take_report(container: Container, log: Path) -> dict[str, Any]:
    data = read_container_report(container)
    if data is None:
        raise KnowngoodError(f"the suite left no report; {_last_line(log)} (log: {log})")
    return _parse_report(data, log)


def read_container_report(container: Container, folder: str = CONTAINER_FOLDER) -> bytes | None:
    """Return the bytes of `report.json` in a container's folder; `None` if there is none. It may have ended."""
    from docker.errors import NotFound

    try:
        chunks, _ = container.get_archive(f"{folder}/report.json")
    except NotFound:
        return None
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        member = archive.extractfile("report.json")
        assert member is not None  # noqa: S101
        return member.read()


def _parse_report(data: bytes, log: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise KnowngoodError(f"the suite left a damaged report ({error}); {_last_line(log)} (log: {log})") from None
    return report


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return "its last line: " + next((line for line in reversed(lines) if line.strip()), "none")


def _tar_folder(files: Mapping[str, bytes]) -> bytes:
    """Return a tar file of the suite's folder, which any user of the container may write to, with these files in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo(Path(CONTAINER_FOLDER).name)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o777
        archive.addfile(folder)
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder.name}/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def engine_fingerprint(engine: Engine) -> dict[str, Any]:
    """Return the fingerprint of the machine on which the engine runs containers."""
    with container_engine.docker_client(engine) as client:
        info = client.info()
    facts = {
        "kernel": info["KernelVersion"],
        "cpus": info["NCPU"],
        "memory": info["MemTotal"],
        "engine": info["ServerVersion"],
        "runtime": info["DefaultRuntime"],
    }
    return machine_fingerprint(str(info["Name"]), facts)


def machine_fingerprint(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a machine with its name, which is hashed because evidence is public."""
    return {"name": hashlib.sha256(name.encode()).hexdigest()[:12], **facts}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
