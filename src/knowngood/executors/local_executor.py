"""The executor for this machine: its engine for images, a process for an environment; one job per GPU."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from knowngood.core.local_files import write_atomically
from knowngood.executors import job_script, local_capacity
from knowngood.executors.job import FailureCause, JobOutcome, JobState, JobStatus, SuiteJob
from knowngood.executors.job_folder import JobFolder, read_text_or_empty
from knowngood.executors.local_capacity import LocalMachine
from knowngood.executors.local_workers import LocalWorker, container_options
from knowngood.smoke import suite_command, suite_run

_KIND_FILE = "kind"


class LocalExecutor:
    """See `job.Executor`. Only this program knows what is queued: when it is started again, it submits that again."""

    longest_pause = 0.5

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        machine: Callable[[], LocalMachine],
        images: Callable[[], LocalWorker],
        environments: Callable[[], LocalWorker],
    ) -> None:
        self.name = name
        self._folder = folder
        self._read_machine = machine
        self._start_worker = {"image": images, "environment": environments}
        self._workers: dict[str, LocalWorker] = {}
        self._queue: dict[str, SuiteJob] = {}
        self._final: dict[str, JobStatus] = {}
        self._running: set[str] = set()

    def submit(self, jobs: Sequence[SuiteJob]) -> Mapping[str, JobStatus]:
        """Queue the jobs; as many as there is room for start at once."""
        known = self.poll(job.key for job in jobs)
        for job in jobs:
            if known[job.key].state is not JobState.LOST:
                continue
            self._final.pop(job.key, None)
            if reason := local_capacity.machine_refusal(job, self._machine):
                self._final[job.key] = JobStatus(state=JobState.REFUSED, cause=FailureCause.NO_NODE, text=reason)
            else:
                self._queue[job.key] = job
        return self.poll(job.key for job in jobs)

    def rehearse(self, jobs: Sequence[SuiteJob]) -> Sequence[str]:
        """Return the shell command of each job."""
        return [_command(job) for job in jobs]

    def poll(self, keys: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return how the jobs stand, after starting those that there is room for."""
        wanted = list(keys)
        for key in wanted:  # another run of this program may have started them
            kind = read_text_or_empty(self._folder / key / _KIND_FILE)
            if kind and key not in self._final:
                self._worker(kind)
        self._advance()
        return {key: self._status(key) for key in wanted}

    def cancel(self, keys: Iterable[str]) -> None:
        """Take the jobs out of the queue, or end them."""
        for key, status in self.poll(keys).items():
            if status.state.is_final:
                continue
            self._queue.pop(key, None)
            for worker in self._workers.values():
                worker.stop_job(key)
            self._running.discard(key)
            self._final[key] = JobStatus(state=JobState.CANCELLED, node=self._machine.name)

    def result(self, key: str) -> JobOutcome:
        """Return what the job left in its folder; the node's name is hashed."""
        outcome = JobFolder(self._folder / key).read_outcome()
        if outcome.node.get("runtime") != job_script.BARE:  # from an engine: a fingerprint already
            return outcome
        facts = {name: outcome.node[name] for name in ("kernel", "cpus")}
        return replace(outcome, node=suite_run.machine_fingerprint(str(outcome.node["name"]), facts))

    @cached_property
    def _machine(self) -> LocalMachine:
        return self._read_machine()

    def _worker(self, kind: str) -> LocalWorker:
        if kind not in self._workers:
            self._workers[kind] = self._start_worker[kind]()
        return self._workers[kind]

    def _advance(self) -> None:
        """Start the queued jobs that there is room for."""
        for job in self._queue.values():
            self._worker(_kind(job))
        running = {key: item for worker in self._workers.values() for key, item in worker.running_jobs().items()}
        for key in running.keys() & self._queue.keys():  # started by a program that was killed
            del self._queue[key]
        queued = list(self._queue.values())
        for placement in local_capacity.choose_placements(queued, running.values(), self._machine) if queued else []:
            job = placement.job
            write_atomically(self._folder / job.key / _KIND_FILE, _kind(job))
            if final := self._worker(_kind(job)).start_job(placement):
                self._final[job.key] = final
            else:
                running[job.key] = (job.needs, placement.device)
            del self._queue[job.key]
        self._running = set(running)

    def _status(self, key: str) -> JobStatus:
        folder, node = JobFolder(self._folder / key), self._machine.name
        if key in self._final:
            return self._final[key]
        if key in self._queue:
            return JobStatus(state=JobState.QUEUED, text="waits for room on this machine")
        if folder.has_outcome():
            return JobStatus(state=JobState.ENDED, node=node)
        if key in self._running:
            return JobStatus(state=JobState.RUNNING, node=node)
        if failure := folder.read_failure():
            return JobStatus(state=failure.state, cause=failure.cause, text=failure.text, node=node)
        return JobStatus(state=JobState.LOST, text="this machine has no record of it")


def _kind(job: SuiteJob) -> str:
    return "environment" if job.subject.environment else "image"


def _command(job: SuiteJob) -> str:
    if job.subject.environment:
        words = [f"{job.subject.environment}/bin/python", "-m", "pytest", str(job.suite_folder), *job.command]
        return shlex.join(["timeout", "--kill-after=10", str(job.needs.seconds), *words])
    words = suite_command.docker_run_words(
        container_options(job.needs), str(job.subject.image), job.suite_folder, job.command
    )
    words = ["device=GPU" if word == "all" else word for word in words]  # one GPU, which is chosen at the start
    return shlex.join(["docker", *words])
