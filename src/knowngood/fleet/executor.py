"""What every engine that runs jobs can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from knowngood.fleet.job import Job, Status


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a job left behind."""

    report: Mapping[str, Any]
    """The suite's own report, unchanged."""
    node: Mapping[str, Any]
    """The fingerprint of the node that ran it (`smoke.fingerprint`): its name is a hash, since evidence is public."""
    when: str
    """ISO 8601, UTC."""
    gpu: bool
    """Whether the node gave it a GPU."""


class Executor(Protocol):
    """An engine that runs jobs: this machine, a Slurm cluster, a Kubernetes cluster.

    Jobs are known by their `key`. A program that is killed and started again submits the same jobs; an executor finds
    those that its engine already has (by name) and does not submit them twice. Every method raises `MissingError` when
    the engine does not answer; whatever concerns one job only is in its `Status`, so that the rest completes.
    """

    name: str
    """For people and for `where` in results: `local`, `slurm`, `kubernetes`, or what the configuration calls it."""

    def submit(self, jobs: Sequence[Job]) -> Mapping[str, Status]:
        """Hand in jobs, in as few submissions as the engine allows; key to how it stands.

        That is `QUEUED` or `REFUSED`; for a job that the engine already has it is whatever `poll` says.
        """

    def rehearse(self, jobs: Sequence[Job]) -> Sequence[str]:
        """What `submit` would do, for `--dry-run`: exact commands, scripts or manifests; the engine is not asked."""

    def poll(self, keys: Iterable[str]) -> Mapping[str, Status]:
        """How the jobs stand, in one question to the engine however many they are; what it does not know is `LOST`."""

    def cancel(self, keys: Iterable[str]) -> None:
        """End jobs that are queued or running; one that has ended stays as it is."""

    def logs(self, key: str) -> str:
        """What the job has printed so far; empty where there is nothing (yet)."""

    def result(self, key: str) -> Outcome:
        """What an `ENDED` job left. `KnowngoodError` when its report is missing, half written or of another."""
