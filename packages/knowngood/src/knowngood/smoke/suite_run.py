"""Runs the smoke suite in a container of a cell's image, or in the current Python environment."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.base import emulation
from knowngood.core import local_files
from knowngood.core.cell import Cell
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.hosts import DEFAULT_HOST, parse_host
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.smoke import suite_files
from knowngood.smoke.suite_command import (
    CONTAINER_FOLDER,
    EMULATED_LIMITS,
    EMULATED_SECONDS,
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
_PROCESSES_LABEL = "io.knowngood.parallel"


@dataclass(frozen=True, kw_only=True)
class SuiteContainer:
    """The container in which a suite runs: of which image, in which engine, and how its run is followed."""

    cell: Cell
    image: str
    """The image as the engine names it."""
    digest: str
    """The image's digest, for the evidence."""
    engine: Engine
    options: SuiteOptions
    log: Path
    notify: Notify

    def run_command(self, argv: list[str], *, files: Mapping[str, bytes], label: str) -> dict[str, Any]:
        """Run a suite's command in the container, with these files in `CONTAINER_FOLDER`; return its report.

        It has no network, and limits on memory, processes and time; it is always removed. Of a cell and a `label` there
        is one container at a time: one that a killed run has left is removed before.

        Raises:
            MissingError: a GPU was asked for, and the engine cannot give one.
            KnowngoodError: the suite did not end in time, used too much memory, or left no report.
        """
        with container_engine.docker_client(self.engine) as client:
            value = f"{platform.node()}/{self.cell}"
            remove_old_containers(client, label, value)
            platform_name = self.cell.host.oci_platform if self.options.emulated else None
            try:
                container = create_suite_container(
                    client, self.image, argv, self.options, labels={label: value}, platform_name=platform_name
                )
                put_suite_files(container, files)
                start_suite_container(container, self.engine)
                wait_for_suite(container, self.options, self.log, self.notify)
                return take_suite_report(container, self.log)
            finally:  # by label: a signal may come when the engine has made it and this process does not know it yet
                remove_old_containers(client, label, value)

    def describe_run(self, argv: list[str], report: dict[str, Any]) -> Evidence:
        """Return the evidence of a run of this command."""
        return Evidence(
            cell=str(self.cell),
            where=find_run_place(self.options),
            image=self.digest,
            when=current_time(),
            node=engine_fingerprint(self.engine),
            command=tuple(argv),
            report=report,
        )


def run_in_container(place: SuiteContainer, *, suite: Path, predictions: Mapping[str, Any]) -> Evidence:
    """Run the suite of a folder, which is copied into the container.

    Where the engine's machine has another processor than the image is for, QEMU runs the suite's core alone, and the
    evidence says so. Raises as `SuiteContainer.run_command`, and `MissingError` where the image's programs cannot run.
    """
    cell = place.cell
    if is_foreign_cell(cell, place.engine):
        place = replace(place, options=emulated_options(cell, place.options))
    argv = container_command(cell, place.options)
    files = list_suite_files(suite, predictions, emulated=place.options.emulated)
    with emulation.emulate_host(cell.host, place.notify) if place.options.emulated else contextlib.nullcontext():
        report = place.run_command(argv, files=files, label=_LABEL)
    return place.describe_run(argv, report)


def run_processes_in_container(place: SuiteContainer, *, suite: Path, parallel_suite: Path, processes: int) -> Evidence:
    """Run the checks of training over several processes, one GPU each with `options.gpus`.

    `parallel_suite` is the folder `parallel_tests`, which imports `suite`. Raises as `SuiteContainer.run_command`.
    """
    words = _process_words(place.options, processes)
    return run_package_in_container(place, words, suite=suite, package=parallel_suite, label=_PROCESSES_LABEL)


def run_package_in_container(
    place: SuiteContainer, words: Sequence[str], *, suite: Path, package: Path, label: str
) -> Evidence:
    """Run `python -m` of a suite beside the smoke suite, both of which are copied into the container.

    Raises as `SuiteContainer.run_command`.
    """
    argv = ["timeout", "--kill-after=10", str(place.options.seconds), "env", f"PYTHONPATH={CONTAINER_FOLDER}"]
    argv += ["python", "-m", package.name, "--out", f"{CONTAINER_FOLDER}/report.json", *words]
    files = {**suite_files.read_suite_files(suite), **suite_files.read_suite_files(package, package.name)}
    return place.describe_run(argv, place.run_command(argv, files=files, label=label))


def find_run_place(options: SuiteOptions) -> RunPlace:
    """Return what evidence calls the place of a run in a container with these options."""
    if options.emulated:
        return RunPlace.CONTAINER_EMULATED
    return RunPlace.CONTAINER_GPU if options.gpus else RunPlace.CONTAINER_CPU


def is_foreign_cell(cell: Cell, engine: Engine) -> bool:
    """Return whether a cell's image is for another processor than that of the machine of an engine.

    No engine of another processor takes a cell for x86-64, so none is asked about one.
    """
    if cell.host == DEFAULT_HOST:
        return False
    with container_engine.docker_client(engine) as client:
        return parse_host(str(client.info()["Architecture"])) is not cell.host


def emulated_options(cell: Cell, options: SuiteOptions) -> SuiteOptions:
    """Return the options for a run of a cell's image under emulation; `MissingError` where they ask for a GPU."""
    if options.gpus:
        raise MissingError(
            f"{cell} is for hosts of {cell.host}: on this machine its programs are emulated, and have no GPU; run it "
            f"on a host of {cell.host}, or without --gpus"
        )
    return replace(options, quick=False, emulated=True, seconds=max(options.seconds, EMULATED_SECONDS))


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
    return _run_program_here(
        cell,
        lambda folder: ["-m", "pytest", str(suite), *reporting_arguments(options, str(folder), cell_gpu=cell.gpu)],
        shown=("-m", "pytest", "smoke_tests"),
        seconds=options.seconds,
        predictions=predictions,
        log=log,
        notify=notify,
    )


def run_processes_in_environment(  # noqa: PLR0913
    cell: Cell, suite: Path, options: SuiteOptions, *, processes: int, log: Path, notify: Notify
) -> Evidence:
    """Run the checks of training over several processes like `run_in_environment`, one GPU each with `options.gpus`.

    `suite` is the folder `parallel_tests`, beside which the smoke suite is.
    """
    words = _process_words(options, processes)
    return run_package_in_environment(cell, suite, words, seconds=options.seconds, log=log, notify=notify)


def run_package_in_environment(  # noqa: PLR0913
    cell: Cell, package: Path, words: Sequence[str], *, seconds: int, log: Path, notify: Notify
) -> Evidence:
    """Run a suite beside the smoke suite without a container, with the Python of `VIRTUAL_ENV` or this program's."""
    return _run_program_here(
        cell,
        lambda folder: [str(package), "--out", f"{folder}/report.json", *words],
        shown=(package.name,),
        seconds=seconds,
        predictions={},
        log=log,
        notify=notify,
        variables={"PYTHONPATH": os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))},
    )


def _process_words(options: SuiteOptions, processes: int) -> list[str]:
    words = ["--processes", str(processes), "--backend", "nccl" if options.gpus else "gloo"]
    # What runs at that time may take its own; the report of what ran is then there in any case.
    words += ["--budget", str(max(60, options.seconds - 180))]
    if options.only is not None:
        words += ["--only", options.only]
    return [*words, "--quick"] if options.quick else words


def _run_program_here(  # noqa: PLR0913
    cell: Cell,
    arguments: Callable[[Path], list[str]],
    *,
    shown: tuple[str, ...],
    seconds: int,
    predictions: Mapping[str, Any],
    log: Path,
    notify: Notify,
    variables: Mapping[str, str] | None = None,
) -> Evidence:
    """Run Python with arguments that depend on a folder, where predictions are read and the report is written.

    The evidence names `shown` in the place of as many words, and files in the folder by their names: it is public, and
    paths of this machine say nothing.
    """
    with local_files.scratch_folder() as folder:
        (folder / "predictions.json").write_text(json.dumps(predictions))
        words = arguments(folder)
        content = run_environment_python(
            words, folder / "report.json", seconds=seconds, log=log, notify=notify, variables=variables or {}
        )
        report = parse_suite_report(content, log)
    return Evidence(
        cell=str(cell),
        where=RunPlace.BARE,
        image=None,
        when=current_time(),
        node=environment_fingerprint(),
        command=("python", *shown, *(word.removeprefix(f"{folder}/") for word in words[len(shown) :])),
        report=report,
    )


def run_environment_python(  # noqa: PLR0913
    words: Sequence[str],
    report: Path,
    *,
    seconds: int,
    log: Path,
    notify: Notify,
    variables: Mapping[str, str],
    folder: Path | None = None,
) -> bytes:
    """Run Python with arguments that write a report, and return that; in `folder`, or in the current one.

    Raises `KnowngoodError` where it does not end in time or leaves no report.
    """
    python = find_environment_python()
    notify(f"running the suite with {python}")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        try:
            subprocess.run(
                [python, *words],
                env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables},
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
                preexec_fn=end_with_parent(),
            )
        except subprocess.TimeoutExpired:
            kept = keep_unfinished_report(report.read_bytes() if report.exists() else None, log)
            raise KnowngoodError(f"the suite did not end within {seconds} s (log: {log}{kept})") from None
    if not report.exists():
        raise KnowngoodError(f"the suite left no report; {_last_log_line(log)} (log: {log})")
    return report.read_bytes()


def environment_fingerprint() -> dict[str, Any]:
    """Return what identifies this machine in the evidence of a run without a container."""
    return machine_fingerprint(platform.node(), {"kernel": platform.release(), "cpus": os.cpu_count()})


def find_environment_python() -> str:
    """Return the absolute path of the Python of `VIRTUAL_ENV`, or else of this program's."""
    folder = os.environ.get("VIRTUAL_ENV")
    return str(Path(folder).absolute() / "bin/python") if folder else sys.executable


def remove_old_containers(client: DockerClient, label: str, value: str) -> None:
    """Remove the containers of a run by their label, also of one that was killed; one run at a time has this value."""
    for container in client.containers.list(all=True, filters={"label": f"{label}={value}"}):
        container.remove(force=True, v=True)


def create_suite_container(  # noqa: PLR0913
    client: DockerClient,
    image: str,
    command: list[str],
    options: SuiteOptions,
    *,
    labels: Mapping[str, str],
    platform_name: str | None = None,
) -> Container:
    """Create a container for the suite: no network, limits on memory and processes, or all GPUs.

    `platform_name`, such as `linux/arm64`, is that of an image for another processor than the engine's machine has.
    """
    from docker.types import DeviceRequest

    requests = [DeviceRequest(**gpu_request(client.info()))] if options.gpus else None
    return client.containers.create(
        image,
        command,
        device_requests=requests,
        environment={"HF_HUB_OFFLINE": "1"} | ({"PYTHONPATH": CONTAINER_FOLDER} if options.emulated else {}),
        platform=platform_name,
        network_mode="none",
        mem_limit=options.memory,
        pids_limit=options.pids,
        shm_size=SHARED_MEMORY,
        init=True,
        labels=dict(labels),
    )


def list_suite_files(suite: Path, predictions: Mapping[str, Any], *, emulated: bool = False) -> dict[str, bytes]:
    """Return what a run of the smoke suite has in its folder: the suite and its predictions.

    For an `emulated` run the plugin with its time limits goes along.
    """
    files = {"predictions.json": json.dumps(predictions).encode(), **suite_files.read_suite_files(suite)}
    return files | ({EMULATED_LIMITS.name: EMULATED_LIMITS.read_bytes()} if emulated else {})


def put_suite_files(container: Container, files: Mapping[str, bytes]) -> None:
    """Put the folder for the report into the container, with these files in it."""
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


def wait_for_suite(container: Container, options: SuiteOptions, log: Path, notify: Notify) -> None:
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
        raise KnowngoodError(f"the suite was killed because it used more than {options.memory} of memory (log: {log})")
    if status["StatusCode"] in TIMED_OUT:
        kept = keep_unfinished_report(read_container_report(container), log)
        raise KnowngoodError(f"the suite did not end within {options.seconds} s (log: {log}{kept})")


def keep_unfinished_report(data: bytes | None, log: Path) -> str:
    """Keep the report of a suite that was stopped beside its log, and return the words that say where.

    It has the checks that had ended: it is rewritten after each. It is no evidence, since the rest may be wrong.
    """
    if data is None:
        return ""
    path = log.with_suffix(".report.json")
    local_files.write_atomically(path, data)
    return f"; what had run by then: {path}"


def take_suite_report(container: Container, log: Path) -> dict[str, Any]:
    """Return the report of a suite that has ended; raises `KnowngoodError` where it left none."""
    data = read_container_report(container)
    if data is None:
        raise KnowngoodError(f"the suite left no report; {_last_log_line(log)} (log: {log})")
    return parse_suite_report(data, log)


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


def parse_suite_report(data: bytes, log: Path) -> dict[str, Any]:
    """Return the report that these bytes are; raises `KnowngoodError` where they are damaged, and names the log."""
    try:
        report: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise KnowngoodError(f"the suite left a damaged report ({error}); {_last_log_line(log)} (log: {log})") from None
    return report


def _last_log_line(log: Path) -> str:
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


def current_time() -> str:
    """Return the time, as evidence states it: ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
