"""A job: one run of the suite, what it needs, how it stands, and the protocol of the engines that run jobs. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

GRACE_SECONDS = 120
"""Added to the suite's own time limit: an image is pulled, a container starts, a report is written."""


@dataclass(frozen=True, kw_only=True)
class JobNeeds:
    """What a job requires of the node that runs it."""

    gpu: str | None = None
    """Compute architecture (`sm_90`); `None`: the suite runs on a CPU."""
    gpus: int = 0
    driver: str | None = None
    """The lowest NVIDIA driver version that will do (`580.65.06`). Not every engine can check it."""
    cpus: int = 2
    memory: int = 12 << 30
    """Bytes of the node's main memory."""
    seconds: int = 1200
    """The suite's own time limit. The engine's limit is this and `GRACE_SECONDS`."""


@dataclass(frozen=True, kw_only=True)
class JobSubject:
    """What the suite tests: either `image` or `environment` is given."""

    image: str | None = None
    """`repository@sha256:...`."""
    environment: str | None = None
    """A folder that every node sees, with a locked environment (`bin/python`) in it; for sites without containers."""
    content: str
    """What the evidence is about: the image's digest, or the lock's digest for an environment."""
    config: str | None = None
    """The digest of the image's configuration, which names each layer's bytes. An engine whose store keeps no
    manifests uses it as the image's id."""


@dataclass(frozen=True, kw_only=True)
class SuiteJob:
    """One run of the suite for one cell."""

    cell: str
    subject: JobSubject
    suite: str
    """The suite's hash."""
    suite_folder: Path
    """The folder on this machine that has this suite; it is no part of the job's identity."""
    command: tuple[str, ...]
    """The suite's own arguments. The engine adds a Python, the suite's folder and the paths of the report."""
    predictions: Mapping[str, Any]
    needs: JobNeeds
    avoid: frozenset[str] = frozenset()
    """The engine's names of nodes that must not run it, because they failed what other nodes passed."""
    attempt: int = 1

    @cached_property
    def key(self) -> str:
        """The job's identity at every engine (24 hexadecimal digits). Equal work has an equal key."""
        identity = {
            "cell": self.cell,
            "content": self.subject.content,
            "suite": self.suite,
            "command": self.command,
            "needs": asdict(self.needs),
            "avoid": sorted(self.avoid),
            "attempt": self.attempt,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]


class JobState(StrEnum):
    """How a job stands at its engine."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    """The suite ran to its end, green or red: there should be a report."""
    FAILED = "failed"
    """The job ended before the suite did; `JobStatus.cause` says why."""
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """The engine will never run it: no such partition, no node with that GPU, a quota."""
    LOST = "lost"
    """The engine has no record of it, or no longer."""

    @property
    def is_final(self) -> bool:
        """Whether the state will not change any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class FailureCause(StrEnum):
    """Why a job ended before its suite did, or never started."""

    TIME_LIMIT = "time-limit"
    NODE = "node"
    """The node failed, was drained or taken away."""
    MEMORY = "memory"
    IMAGE_PULL = "image-pull"
    QUOTA = "quota"
    NO_NODE = "no-node"
    """No node satisfies the requirements."""
    ENGINE = "engine"
    """The engine rejected it (no such partition, account, namespace)."""
    CRASH = "crash"
    """The suite's process ended and left no report."""

    @property
    def retryable(self) -> bool:
        """Whether the same job may succeed when it is simply run again: the cause says nothing about the image."""
        return self in (FailureCause.NODE, FailureCause.IMAGE_PULL)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """What an engine reports about a job now."""

    state: JobState
    cause: FailureCause | None = None
    text: str = ""
    """A sentence for people, which quotes the engine's own words."""
    node: str | None = None
    """The engine's name of the node that runs or ran it."""
    queued: float | None = None
    """Seconds it waited, by the engine's clock alone, since the clock of this machine may be wrong."""
    ran: float | None = None
    """Seconds it ran, by the engine's clock alone."""


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """What a job whose suite ran to its end has left behind."""

    report: Mapping[str, Any]
    """The suite's own report, unchanged."""
    node: Mapping[str, Any]
    """The fingerprint of the node (`suite_run.fingerprint`): its name is a hash, since evidence is public."""
    when: str
    """ISO 8601, UTC."""
    gpu: bool
    """Whether the job had a GPU."""


class Executor(Protocol):
    """An engine that runs jobs: this machine, a Slurm cluster, a Kubernetes cluster.

    A job is identified by its `key`. A program that was killed and started again submits the same jobs; the executor
    recognises those that its engine already has, by their names, and does not submit them twice. Every method raises
    `MissingError` when the engine does not answer. Trouble with a single job goes into its `JobStatus`, so that the
    other jobs complete.
    """

    name: str
    """For people and for `executor` in the JSON answer: `local`, or the name in fleet.yaml."""
    longest_pause: float
    """The longest time in seconds between two polls: short where a poll is cheap for the engine."""

    def submit(self, jobs: Sequence[SuiteJob]) -> Mapping[str, JobStatus]:
        """Submit jobs in as few requests as the engine allows; return key -> status.

        A new job is `QUEUED` or `REFUSED`. For a job that the engine already has, the answer is that of `poll`.
        """

    def rehearse(self, jobs: Sequence[SuiteJob]) -> Sequence[str]:
        """For `--dry-run`: the exact commands, scripts or manifests of `submit`; the engine is not asked."""

    def poll(self, keys: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return key -> status, with one question to the engine for all of them; an unknown job is `LOST`."""

    def cancel(self, keys: Iterable[str]) -> None:
        """End jobs that are queued or running; finished jobs stay as they are."""

    def result(self, key: str) -> JobOutcome:
        """Return what an `ENDED` job left.

        Raises `KnowngoodError` when the report is missing, incomplete or that of another job.
        """


@dataclass(kw_only=True)
class Pace:
    """Pauses between polls, in seconds: from `shortest` to `longest`, each half as long again as the one before."""

    shortest: float
    longest: float
    _pause: float = 0.0

    def next_pause(self) -> float:
        """Return how long to wait until the next poll."""
        self._pause = min(max(self._pause * 1.5, self.shortest), self.longest)
        return self._pause

    def reset(self) -> None:
        """Poll soon again, since something has changed."""
        self._pause = 0.0


def batch_jobs(
    jobs: Iterable[SuiteJob], shape: Callable[[SuiteJob], str], fits: Callable[[Sequence[SuiteJob]], bool]
) -> list[list[SuiteJob]]:
    """Divide jobs into batches for one submission each: jobs of one shape, as many as fit together."""
    batches: list[list[SuiteJob]] = []
    for _, similar in groupby(sorted(jobs, key=shape), key=shape):
        batch: list[SuiteJob] = []
        for job in similar:
            if batch and not fits([*batch, job]):
                batches.append(batch)
                batch = []
            batch.append(job)
        batches.append(batch)
    return batches
