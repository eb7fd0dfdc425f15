"""Runs jobs on an executor: submits, waits, collects results, retries, judges, and remembers all of it.

The failure or refusal of one job does not stop the others. Every result is stored at once. A program that was killed,
or that stopped waiting, continues with its jobs when the same command is run again.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.core.notify import Notify
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.executors import job_verdict
from knowngood.executors.job import Executor, JobOutcome, JobState, JobStatus, Pace, SuiteJob
from knowngood.executors.job_folder import read_text_or_empty
from knowngood.executors.job_verdict import JobResult, JobTry, JobVerdict, NodeResult, VerdictKind

SHORTEST_PAUSE = 0.25
"""Seconds between the first two polls."""
SILENCE_SECONDS = 600.0
"""How long an engine that has the jobs may not answer before the run gives up."""
STATE_SCHEMA = "knowngood/fleet-state/1"
MAX_SETTLED_TRACKS = 10_000
"""Jobs with a reported verdict that the state file keeps; the oldest are dropped."""


class JobTrack(BaseModel):
    """The tries of a job that have ended, and the one that is at the engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cell: str
    tries: tuple[JobTry, ...] = ()
    attempt: int = 1
    avoid: tuple[str, ...] = ()
    settled: bool = False
    """Its verdict has been reported: the next command starts a new try."""

    def current_job(self, request: SuiteJob) -> SuiteJob:
        """Return the requested job as it is, or was last, at the engine."""
        return replace(request, attempt=self.attempt, avoid=frozenset(self.avoid))


class _StateFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_: str = STATE_SCHEMA
    tracks: dict[str, JobTrack] = {}


class FleetState:
    """What is known of an executor's jobs and nodes; kept in two files, so that a killed program can continue."""

    def __init__(self, folder: Path) -> None:
        self._path, self.ledger_path = folder / "state.json", folder / "nodes.json"
        self.tracks: dict[str, JobTrack] = {}
        """By the key of the requested job, before attempt and nodes to avoid are set."""
        self.ledger = job_verdict.NodeLedger()
        self.note = ""
        """A sentence for people about a damaged file."""
        with contextlib.suppress(FileNotFoundError, ValidationError, ValueError):  # damaged: every job is a new one
            stored = _StateFile.model_validate_json(self._path.read_bytes())
            self.tracks = stored.tracks if stored.schema_ == STATE_SCHEMA else {}
        if self.ledger_path.exists():
            ledger = job_verdict.parse_ledger(read_text_or_empty(self.ledger_path))
            self.note = "" if ledger else f"{self.ledger_path} cannot be read: no node is avoided"
            self.ledger = ledger or self.ledger

    def open_track(self, request: SuiteJob) -> JobTrack:
        """Return the unfinished track of a requested job, or start a new one."""
        track = self.tracks.get(request.key)
        if track is None or track.settled:
            attempt = track.attempt + 1 if track else 1
            avoid = tuple(sorted(self.ledger.suspects()))
            self.tracks[request.key] = JobTrack(cell=request.cell, attempt=attempt, avoid=avoid)
        return self.tracks[request.key]

    def cancel_jobs(self, requests: Sequence[SuiteJob], executor: Executor) -> list[str]:
        """End the unfinished jobs among those requested; return their cells."""
        cells = []
        for request in requests:
            track = self.tracks.get(request.key)
            if track and not track.settled:
                executor.cancel([track.current_job(request).key])
                self.tracks[request.key] = track.model_copy(update={"settled": True})
                cells.append(request.cell)
        self.save()
        return cells

    def save(self) -> None:
        """Write both files, each whole or not at all."""
        settled = [key for key, track in self.tracks.items() if track.settled]
        for key in settled[:-MAX_SETTLED_TRACKS]:
            del self.tracks[key]
        document = _StateFile(tracks=self.tracks).model_dump(mode="json", exclude_defaults=True)
        write_atomically(self._path, json.dumps({"schema_": STATE_SCHEMA, **document}, indent=1) + "\n")
        if self.ledger.results or self.ledger_path.exists():
            write_atomically(self.ledger_path, self.ledger.render())


def state_folder(executor: str) -> Path:
    """Return the folder for the state of the executor with this name."""
    return cache_folder() / "fleet" / executor


@dataclass(kw_only=True)
class JobRun:
    """Runs the jobs of one command on one executor."""

    executor: Executor
    state: FleetState
    store: Callable[[Evidence], str]
    """Stores a run of the suite, once however often it is given; returns the file's name for people."""
    notify: Notify
    wait: float
    """After this many seconds, unfinished jobs are left to the engine."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _requests: dict[str, SuiteJob] = field(default_factory=dict)
    """Unfinished jobs as they were requested, by the key of their current try."""
    _new: dict[str, SuiteJob] = field(default_factory=dict)
    """Tries that are not submitted yet, by key."""
    _results: dict[str, JobResult] = field(default_factory=dict)
    """By the key of the requested job."""

    def run_jobs(self, requests: Sequence[SuiteJob]) -> list[JobResult]:
        """Return every job's result, in the order given. Raises `MissingError` when the engine does not answer."""
        for request in requests:
            self._open(request)
        self.state.save()
        statuses = self._submit()
        pace = Pace(shortest=SHORTEST_PAUSE, longest=self.executor.longest_pause)
        last_answer = self.clock()
        deadline = last_answer + self.wait
        while self._requests:
            if self._settle(statuses):
                pace.reset()
            self.state.save()
            if not self._requests or self.clock() >= deadline:
                break
            self.sleep(min(pace.next_pause(), max(0.0, deadline - self.clock())))
            try:
                statuses = self._poll()
                last_answer = self.clock()
            except MissingError as error:
                if self.clock() - last_answer > SILENCE_SECONDS:
                    raise MissingError(
                        f"{error}; the jobs stay at the engine, and the same command continues with them"
                    ) from None
                self.notify(f"polling failed: {error}; retrying")
                statuses = {}
        for key, request in self._requests.items():
            self._results[request.key] = self._waiting(request, statuses.get(key))
        return [self._results[request.key] for request in requests]

    def _open(self, request: SuiteJob) -> None:
        job = self.state.open_track(request).current_job(request)
        self._requests[job.key] = request
        self._new[job.key] = job

    def _submit(self) -> Mapping[str, JobStatus]:
        """Submit the new tries; they stay new until the engine has answered."""
        if not self._new:
            return {}
        self.notify(f"submitting {len(self._new)} job{'s' * (len(self._new) > 1)} to {self.executor.name}")
        statuses = self.executor.submit(list(self._new.values()))
        self._new.clear()
        return statuses

    def _poll(self) -> Mapping[str, JobStatus]:
        submitted = self._requests.keys() - self._new.keys()
        return {**(self.executor.poll(sorted(submitted)) if submitted else {}), **self._submit()}

    def _settle(self, statuses: Mapping[str, JobStatus]) -> bool:
        """Collect the tries that have ended; return whether there were any."""
        ended = [key for key in self._requests if key in statuses and statuses[key].state.is_final]
        for key in ended:
            self._end_try(key, statuses[key])
        if ended:
            self.notify(f"{len(self._results)} done, {len(self._requests)} to go")
        return bool(ended)

    def _end_try(self, key: str, status: JobStatus) -> None:
        """Collect a try; then the job has its result, or another try is opened."""
        request = self._requests[key]
        track = self.state.tracks[request.key]
        try:
            result = self._collect(track.current_job(request), status)
        except MissingError as error:  # the result exists, but its holder does not answer
            self.notify(f"the result cannot be read yet: {error}; retrying")
            return
        del self._requests[key]
        if status.state is JobState.REFUSED:
            self.executor.cancel([key])  # some engines would keep it in their queue for ever
        tries = (*track.tries, result)
        match job_verdict.judge_tries(tries):
            case JobVerdict() as verdict:
                self.state.tracks[request.key] = track.model_copy(update={"tries": tries, "settled": True})
                self._results[request.key] = JobResult(job=request, verdict=verdict, tries=tries)
            case retry:
                self.notify(f"{request.cell}: trying again: {retry.because}")
                update = {"tries": tries, "attempt": track.attempt + 1, "avoid": tuple(sorted(retry.avoid))}
                self.state.tracks[request.key] = track.model_copy(update=update)
                self._open(request)

    def _collect(self, job: SuiteJob, status: JobStatus) -> JobTry:
        """Return an ended try, after storing its run of the suite and its node's result."""
        ended = JobTry(attempt=job.attempt, avoid=tuple(sorted(job.avoid)), **vars(status))
        when = ""
        if status.state is JobState.ENDED:
            try:
                outcome = self.executor.result(job.key)
                run = evidence_from_outcome(job, outcome)
                path = self.store(run)
            except MissingError:
                raise
            except KnowngoodError as error:
                return ended.model_copy(update={"domain": job_verdict.DAMAGED, "text": str(error)})
            verdict, when = run.report["verdict"], outcome.when
            domain = "none" if run.ok else str(verdict["domain"])
            ended = ended.model_copy(update={"domain": domain, "text": str(verdict["text"]), "evidence": path})
        if ended.node and (ended.good or ended.red):
            result = NodeResult(
                node=ended.node,
                cell=job.cell,
                content=job.subject.content,
                good=ended.good,
                text=ended.text,
                when=when,
            )
            self.state.ledger = self.state.ledger.add(result)
        return ended

    def _waiting(self, request: SuiteJob, status: JobStatus | None) -> JobResult:
        standing = (
            f"{status.state}: {status.text}".removesuffix(": ") if status else "at an engine that does not answer"
        )
        text = f"still {standing}; the same command continues with it"
        verdict = JobVerdict(kind=VerdictKind.WAITING, text=text)
        return JobResult(job=request, verdict=verdict, tries=self.state.tracks[request.key].tries)


def evidence_from_outcome(job: SuiteJob, outcome: JobOutcome) -> Evidence:
    """Return an outcome as evidence. Raises `KnowngoodError` when the report is from another suite."""
    where = RunPlace.CONTAINER_GPU if outcome.gpu else RunPlace.CONTAINER_CPU
    evidence = Evidence(
        cell=job.cell,
        where=RunPlace.BARE if job.subject.environment else where,
        image=None if job.subject.environment else job.subject.content,
        when=outcome.when,
        node=outcome.node,
        command=("python", "-m", "pytest", "smoke_tests", *job.command),
        report=outcome.report,
    )
    if evidence.suite != job.suite:
        raise KnowngoodError(
            f"{job.cell}: the report is of the suite {evidence.suite[:12]}, but the job is for {job.suite[:12]}; "
            "is the image older than this checkout?"
        )
    return evidence
