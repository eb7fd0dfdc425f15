"""Runs jobs on this machine: in containers of its engine, or as processes. Both outlive this program."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.local_files import write_atomically
from knowngood.engine import container_engine, daemon
from knowngood.executors import job_script
from knowngood.executors.job import FailureCause, JobNeeds, JobState, JobStatus, SuiteJob
from knowngood.executors.job_folder import JobFolder
from knowngood.executors.local_capacity import Placement, RunningJob
from knowngood.smoke import suite_command, suite_run

if TYPE_CHECKING:
    from docker.models.containers import Container

    from docker import DockerClient
    from knowngood.engine.container_engine import Engine

LOG_FILE = "log"
_LABEL = "io.knowngood.job"
_PROCESS_FILE, _NEEDS_FILE = "process.json", "needs.json"


class LocalWorker(Protocol):
    """Runs jobs on this machine. What a job leaves is in its folder, with the file names of `job_script`."""

    def start_job(self, placement: Placement) -> JobStatus | None:
        """Start a job. Returns its final status when it cannot be started."""

    def running_jobs(self) -> Mapping[str, RunningJob]:
        """Return the jobs that run, by key, and complete the folders of those that have ended."""

    def stop_job(self, key: str) -> None:
        """End a job and everything that it started."""


class ContainerWorker:
    """Runs jobs in containers of the engine; see `LocalWorker`. A container carries its job's key as a label.

    Another label is the folder of the jobs: of containers that belong to another folder (another user of the engine)
    only what they occupy counts.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine, self._folder = engine, folder

    def start_job(self, placement: Placement) -> JobStatus | None:
        """Create and start the job's container, after pulling its image if necessary."""
        job = placement.job
        labels = {
            _LABEL: job.key,
            f"{_LABEL}.folder": str(self._folder),
            f"{_LABEL}.device": placement.device or "",
            f"{_LABEL}.needs": json.dumps(asdict(job.needs)),
        }
        command = suite_command.timed_command(job.command, job.needs.seconds)
        with container_engine.docker_client(self._engine) as client:
            try:
                image = _find_image(client, job)
            except KnowngoodError as error:
                return JobStatus(state=JobState.FAILED, cause=FailureCause.IMAGE_PULL, text=str(error))
            container = suite_run.create_suite_container(
                client, image, command, container_options(job.needs), labels=labels, device=placement.device
            )
            try:
                files = suite_run.list_suite_files(job.suite_folder, job.predictions)
                suite_run.put_suite_files(container, files)
                suite_run.start_suite_container(container, self._engine)
            except MissingError as error:
                container.remove(force=True, v=True)
                return JobStatus(state=JobState.REFUSED, cause=FailureCause.NO_NODE, text=str(error))
            except BaseException:
                container.remove(force=True, v=True)
                raise
        return None

    def running_jobs(self) -> dict[str, RunningJob]:
        """Return the running jobs; the results of ended containers move to their folders."""
        running = {}
        with container_engine.docker_client(self._engine) as client:
            for container in client.containers.list(all=True, filters={"label": _LABEL}):
                own = container.labels.get(f"{_LABEL}.folder") == str(self._folder)
                key = container.labels[_LABEL] if own else str(container.id)
                if container.status not in ("created", "exited", "dead"):
                    needs = JobNeeds(**json.loads(container.labels[f"{_LABEL}.needs"]))
                    running[key] = (needs, container.labels[f"{_LABEL}.device"] or None)
                elif own and container.status == "created":  # by a program that was killed before it could start it
                    container.remove(force=True, v=True)
                elif own:
                    self._collect(container, JobFolder(self._folder / key))
        return running

    def stop_job(self, key: str) -> None:
        """Remove the job's container."""
        with container_engine.docker_client(self._engine) as client:
            labels = [f"{_LABEL}={key}", f"{_LABEL}.folder={self._folder}"]
            for container in client.containers.list(all=True, filters={"label": labels}):
                container.remove(force=True, v=True)

    def _collect(self, container: Container, folder: JobFolder) -> None:
        state = container.attrs["State"]
        write_atomically(folder.path / LOG_FILE, container.logs().decode(errors="replace"))
        report, code = suite_run.read_container_report(container), int(state["ExitCode"])
        if code in (0, 1) and report is not None:
            with contextlib.suppress(ValueError):  # a damaged report is none
                outcome = self._outcome(folder.path.name, json.loads(report), state)
                write_atomically(folder.path / job_script.OUTCOME_FILE, outcome)
        if not folder.has_outcome():
            folder.write_failure(*_failure(code, oom=bool(state.get("OOMKilled"))))
        container.remove(force=True, v=True)

    def _outcome(self, key: str, report: Any, state: Mapping[str, Any]) -> str:
        when = datetime.fromisoformat(state["FinishedAt"][:19] + "+00:00").isoformat()
        node = suite_run.engine_fingerprint(self._engine)
        document = {"schema": job_script.OUTCOME_SCHEMA, "key": key, "when": when, "node": node, "report": report}
        return json.dumps(document) + "\n"


def container_options(needs: JobNeeds) -> suite_command.SuiteOptions:
    """Return the limits of a job's container."""
    return suite_command.SuiteOptions(
        gpus=needs.gpu is not None, seconds=needs.seconds, memory=f"{needs.memory >> 20}m"
    )


def _find_image(client: DockerClient, job: SuiteJob) -> str:
    """Return the image's id in the engine; the image is pulled if it is missing."""
    from docker.errors import APIError, NotFound

    reference = str(job.subject.image)
    for name in filter(None, (job.subject.content, job.subject.config, reference)):
        with contextlib.suppress(NotFound):
            return str(client.images.get(name).id)
    if "/" not in reference:
        raise KnowngoodError(
            f"the engine has no image {job.subject.content[:19]}; run `knowngood build-matrix '{job.cell}'`"
        )
    try:
        return str(client.images.pull(reference).id)
    except APIError as error:
        raise KnowngoodError(f"the engine cannot pull {reference}: {error.explanation or error}") from None


def _failure(code: int, *, oom: bool) -> tuple[FailureCause, str]:
    if oom:
        return FailureCause.MEMORY, "the suite was killed for too much memory; --memory gives more"
    if code in suite_command.TIMED_OUT:
        return FailureCause.TIME_LIMIT, "the suite did not end in its time; --timeout gives more"
    return FailureCause.CRASH, f"the suite's process ended with {code} and left no whole report"


class ProcessWorker:
    """Runs jobs in environments of this machine, each as a process in its own session; see `LocalWorker`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start_job(self, placement: Placement) -> JobStatus | None:
        """Start the job's script."""
        job, folder = placement.job, self._folder / placement.job.key
        python = f"{job.subject.environment}/bin/python"
        if not os.access(python, os.X_OK):
            text = f"there is no environment: {python} does not run"
            return JobStatus(state=JobState.FAILED, cause=FailureCause.CRASH, text=text)
        launch = job_script.SuiteLaunch(
            name=job_script.BARE, python=python, suite=str(job.suite_folder), folder='"$work"'
        )
        JobFolder(folder).prepare(job, job_script.render_job_script(job, str(folder), launch))
        write_atomically(folder / _NEEDS_FILE, json.dumps({"needs": asdict(job.needs), "device": placement.device}))
        with (folder / LOG_FILE).open("w", encoding="utf-8") as log:
            child = subprocess.Popen(
                ["sh", str(folder / job_script.SCRIPT_FILE)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": placement.device or ""},
            )
        daemon.record_process(child, folder / _PROCESS_FILE)
        return None

    def running_jobs(self) -> dict[str, RunningJob]:
        """Return the running jobs; for a process that was killed, the failure is recorded in its folder."""
        running = {}
        for path in self._folder.glob(f"*/{_PROCESS_FILE}"):
            folder = JobFolder(path.parent)
            if daemon.load_process(path):
                stored = json.loads(folder.read_text(_NEEDS_FILE))
                running[path.parent.name] = (JobNeeds(**stored["needs"]), stored["device"])
                continue
            path.unlink()
            if not folder.has_outcome() and not (path.parent / job_script.FAILURE_FILE).exists():
                folder.write_failure(FailureCause.CRASH, "its process was killed")
        return running

    def stop_job(self, key: str) -> None:
        """Kill the job's process and all of its session."""
        path = self._folder / key / _PROCESS_FILE
        if process := daemon.load_process(path):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        path.unlink(missing_ok=True)
