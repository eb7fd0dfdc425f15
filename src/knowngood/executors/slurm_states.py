"""Reads the answers of sbatch, squeue and sacct, and decides when to ask squeue again. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from knowngood.executors.job import FailureCause, JobState, JobStatus, Pace

SQUEUE = ("squeue", "--noheader", "--array", "--states=all", "--format=%F|%K|%T|%r|%N|%V|%S|%e")
SACCT = (
    "sacct",
    "--noheader",
    "--parsable2",
    "--array",
    "--allocations",
    "--format=JobID,State,Reason,NodeList,Submit,Start,End",
)
TaskId = tuple[str, int]
"""A job of an array: the array's number, and the job's index."""

_QUEUED_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_ENDED_STATES = {"COMPLETED": JobState.ENDED, "CANCELLED": JobState.CANCELLED, "REVOKED": JobState.CANCELLED}
_FAILED_STATES = {
    "BOOT_FAIL": FailureCause.NODE,
    "DEADLINE": FailureCause.TIME_LIMIT,
    "FAILED": FailureCause.CRASH,
    "NODE_FAIL": FailureCause.NODE,
    "OUT_OF_MEMORY": FailureCause.MEMORY,
    "PREEMPTED": FailureCause.NODE,
    "TIMEOUT": FailureCause.TIME_LIMIT,
}
# Every other state means running: RUNNING, COMPLETING, RESIZING, SIGNALING, STAGE_OUT, STOPPED, SUSPENDED.

# Reasons of pending jobs that never start unless somebody changes the job or the site.
_NEVER_STARTS = (
    (r"BadConstraints|Requested node configuration", FailureCause.NO_NODE),
    (r"(QOS|Assoc)Max\w*(PerJob|PerNode)\w*|QOS(Min\w*|\w*WallDuration\w*|TimeLimit)", FailureCause.QUOTA),
    (
        r"Partition(Config|TimeLimit|NodeLimit)|InvalidAccount|InvalidQOS|\w*NotAllowed|JobLaunchFailure|BadPartition",
        FailureCause.ENGINE,
    ),
)
_REFUSALS = (
    (
        (
            r"Invalid feature|node configuration is not available|Memory specification|Invalid generic resource"
            r"|gres|More processors requested|Node count specification"
        ),
        FailureCause.NO_NODE,
    ),
    (r"violates accounting/QOS|MaxSubmit|job submit limit|quota|Disk quota", FailureCause.QUOTA),
)
_UNANSWERED = (
    r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|Connection refused"
    r"|Slurm backup controller in standby|Slurm temporarily unable|authentication|Protocol|munge|MUNGE"
)


@dataclass(frozen=True, kw_only=True)
class SlurmRecord:
    """What Slurm reports about one job; times in seconds, by the cluster's clock."""

    state: str
    reason: str
    node: str | None
    queued: float | None
    ran: float | None


def parse_squeue(text: str) -> Iterator[tuple[TaskId, SlurmRecord]]:
    """Yield the records in the output of the command `SQUEUE`."""
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) == 8 and fields[0].isdecimal() and fields[1].isdecimal():
            array, index, *rest = fields
            yield (array, int(index)), _record(rest)


def parse_sacct(text: str) -> Iterator[tuple[TaskId, SlurmRecord]]:
    """Yield the records in the output of the command `SACCT`."""
    for line in text.splitlines():
        number, _, rest = line.strip().partition("|")
        array, _, index = number.partition("_")
        fields = rest.split("|")
        if len(fields) == 6 and array.isdecimal() and index.isdecimal():
            yield (array, int(index)), _record(fields)


def _record(fields: list[str]) -> SlurmRecord:
    words, reason, node, submitted, began, ended = fields
    state = words.split(" ", maxsplit=1)[0].rstrip("+")  # sacct adds who cancelled it: `CANCELLED by 0`
    finished = state in _ENDED_STATES or state in _FAILED_STATES
    return SlurmRecord(
        state=state,
        reason=reason,
        node=None if node in ("", "None assigned", "(null)") else node,
        queued=_seconds(submitted, began) if state != "PENDING" else None,
        ran=_seconds(began, ended) if finished else None,
    )


def _seconds(start: str, end: str) -> float | None:
    """Return the time between two times of the cluster's one clock; `None` where one is not known."""
    try:
        return max((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds(), 0.0)
    except ValueError:  # `N/A`, `Unknown`
        return None


def status_from_record(record: SlurmRecord) -> JobStatus:
    """Return how a job stands by Slurm's record alone."""
    cause = _FAILED_STATES.get(record.state)
    state = JobState.FAILED if cause else _ENDED_STATES.get(record.state, JobState.RUNNING)
    text = f"Slurm: {record.state}" + (f" ({record.reason})" if record.reason not in ("", "None") else "")
    if record.state in _QUEUED_STATES:
        state, cause = JobState.QUEUED, _find_cause(_NEVER_STARTS, record.reason)
        if cause:
            state, text = JobState.REFUSED, f"Slurm will not start it: {record.reason}"
    return JobStatus(state=state, cause=cause, text=text, node=record.node, queued=record.queued, ran=record.ran)


def status_from_refusal(output: str) -> JobStatus:
    """Return the status of jobs that sbatch refused, from its output."""
    text = " ".join(line.removeprefix("sbatch: error: ").strip() for line in output.splitlines() if line.strip())
    cause = _find_cause(_REFUSALS, text) or FailureCause.ENGINE
    return JobStatus(state=JobState.REFUSED, cause=cause, text=f"sbatch refused it: {text}")


def is_unanswered(errors: str) -> bool:
    """Return whether the controller is absent for now, which says nothing about the jobs."""
    return bool(re.search(_UNANSWERED, errors))


def _find_cause(patterns: tuple[tuple[str, FailureCause], ...], text: str) -> FailureCause | None:
    return next((cause for pattern, cause in patterns if re.search(pattern, text)), None)


SHORTEST_QUERY_PAUSE, LONGEST_QUERY_PAUSE = 1.0, 30.0
"""Seconds between two questions to Slurm. Meanwhile only the shared folder is read, which costs Slurm nothing."""


@dataclass(kw_only=True)
class PollPace:
    """Slurm's last records, and when to ask again: soon after a submission, then less and less often."""

    clock: Callable[[], float]
    records: Mapping[TaskId, SlurmRecord] = field(default_factory=dict)
    _pace: Pace = field(default_factory=lambda: Pace(shortest=SHORTEST_QUERY_PAUSE, longest=LONGEST_QUERY_PAUSE))
    _next: float = 0.0

    def is_due(self, tasks: set[TaskId]) -> bool:
        """Return whether to ask now. A task that no record mentions makes the next question an early one."""
        if not tasks <= self.records.keys():
            self.poll_soon()
        return self.clock() >= self._next

    def add_records(self, records: Mapping[TaskId, SlurmRecord]) -> None:
        """Take an answer of Slurm."""
        self.records = {**self.records, **records}
        self._next = self.clock() + self._pace.next_pause()

    def poll_soon(self) -> None:
        """Ask soon, since something has changed."""
        self._pace.reset()
        self._next = min(self._next, self.clock() + SHORTEST_QUERY_PAUSE)
