"""What Slurm says, read: the answers of sbatch, squeue and sacct. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from knowngood.fleet.job import Cause, State, Status

SQUEUE = ("squeue", "--noheader", "--array", "--states=all", "--format=%F|%K|%T|%r|%N|%V|%S|%e")
SACCT = (
    "sacct",
    "--noheader",
    "--parsable2",
    "--array",
    "--allocations",
    "--format=JobID,State,Reason,NodeList,Submit,Start,End",
)
Place = tuple[str, int]
"""A job of an array: the array's number, and the index."""

_STATES = {
    "PENDING": State.QUEUED,
    "CONFIGURING": State.QUEUED,
    "REQUEUED": State.QUEUED,
    "REQUEUE_FED": State.QUEUED,
    "REQUEUE_HOLD": State.QUEUED,
    "RESV_DEL_HOLD": State.QUEUED,
    "SPECIAL_EXIT": State.QUEUED,
    "RUNNING": State.RUNNING,
    "COMPLETING": State.RUNNING,
    "RESIZING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "STAGE_OUT": State.RUNNING,
    "STOPPED": State.RUNNING,
    "SUSPENDED": State.RUNNING,
    "COMPLETED": State.ENDED,
    "CANCELLED": State.CANCELLED,
    "REVOKED": State.CANCELLED,
}
_CAUSES = {
    "BOOT_FAIL": Cause.NODE,
    "DEADLINE": Cause.TIME_LIMIT,
    "FAILED": Cause.CRASH,
    "NODE_FAIL": Cause.NODE,
    "OUT_OF_MEMORY": Cause.MEMORY,
    "PREEMPTED": Cause.NODE,
    "TIMEOUT": Cause.TIME_LIMIT,
}
# Why a job is pending that will never run, unless someone changes it or the site.
_NEVER = (
    (re.compile(r"BadConstraints|Requested node configuration"), Cause.NO_NODE),
    (re.compile(r"(QOS|Assoc)Max\w*(PerJob|PerNode)\w*|QOS(Min\w*|\w*WallDuration\w*|TimeLimit)"), Cause.QUOTA),
    (
        re.compile(
            r"Partition(Config|TimeLimit|NodeLimit)|InvalidAccount|InvalidQOS|\w*NotAllowed|JobLaunchFailure|BadPartition"
        ),
        Cause.ENGINE,
    ),
)
_REFUSALS = (
    (
        re.compile(
            r"Invalid feature|node configuration is not available|Memory specification|Invalid generic resource"
            r"|gres|More processors requested|Node count specification"
        ),
        Cause.NO_NODE,
    ),
    (re.compile(r"violates accounting/QOS|MaxSubmit|job submit limit|quota|Disk quota"), Cause.QUOTA),
)


@dataclass(frozen=True, kw_only=True)
class Said:
    """What Slurm says of one job."""

    state: str
    reason: str
    node: str | None
    queued: float | None
    ran: float | None


def read(text: str) -> Iterator[tuple[Place, Said]]:
    """The lines of squeue, as `SQUEUE` asks for them."""
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) == 8 and fields[0].isdecimal() and fields[1].isdecimal():
            array, index, *rest = fields
            yield (array, int(index)), _said(rest)


def read_accounts(text: str) -> Iterator[tuple[Place, Said]]:
    """The lines of sacct, as `SACCT` asks for them."""
    for line in text.splitlines():
        number, _, rest = line.strip().partition("|")
        array, _, index = number.partition("_")
        fields = rest.split("|")
        if len(fields) == 6 and array.isdecimal() and index.isdecimal():
            yield (array, int(index)), _said(fields)


def _said(fields: list[str]) -> Said:
    state, reason, node, submitted, began, ended = fields
    started = state != "PENDING"
    return Said(
        state=state.split(" ", maxsplit=1)[0].rstrip("+"),  # sacct says who cancelled it: `CANCELLED by 0`
        reason=reason,
        node=None if node in ("", "None assigned", "(null)") else node,
        queued=_seconds(submitted, began) if started else None,
        ran=_seconds(began, ended) if started and _STATES.get(state) is not State.RUNNING else None,
    )


def _seconds(start: str, end: str) -> float | None:
    """Between two times of the cluster's one clock."""
    try:
        found = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except ValueError:  # `N/A`, `Unknown`
        return None
    return max(found, 0.0)


def status(said: Said) -> Status:
    """How a job stands by what Slurm says alone."""
    cause = _CAUSES.get(said.state)
    state = State.FAILED if cause else _STATES.get(said.state, State.RUNNING)
    text = f"Slurm: {said.state}" + (f" ({said.reason})" if said.reason not in ("", "None") else "")
    if state is State.QUEUED and (never := _cause(_NEVER, said.reason)):
        state, cause, text = State.REFUSED, never, f"Slurm will not start it: {said.reason}"
    return Status(state=state, cause=cause, text=text, node=said.node, queued=said.queued, ran=said.ran)


def refusal(said: str) -> Status:
    """What sbatch said as it refused a batch."""
    text = " ".join(line.removeprefix("sbatch: error: ").strip() for line in said.splitlines() if line.strip())
    return Status(state=State.REFUSED, cause=_cause(_REFUSALS, text) or Cause.ENGINE, text=f"sbatch refused it: {text}")


def unanswered(said: str) -> bool:
    """Whether the controller is not there for now, which is no word on the jobs."""
    return bool(
        re.search(
            r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|Connection refused"
            r"|Slurm backup controller in standby|Slurm temporarily unable|authentication|Protocol|munge|MUNGE",
            said,
        )
    )


def _cause(patterns: tuple[tuple[re.Pattern[str], Cause], ...], said: str) -> Cause | None:
    return next((cause for pattern, cause in patterns if pattern.search(said)), None)
