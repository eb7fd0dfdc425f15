"""Which jobs this machine can begin now: one a GPU, the others as processors and memory allow. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from knowngood.fleet.job import Job, Needs


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is."""

    name: str
    cpus: int
    memory: int
    gpus: Mapping[str, str] = field(default_factory=dict)
    """Index to architecture."""


@dataclass(frozen=True, kw_only=True)
class Begin:
    """A job begins, on a GPU or on none."""

    job: Job
    device: str | None = None


def refusal(job: Job, machine: Machine) -> str | None:
    """Why this machine will never run a job; `None` if it will."""
    if machine.name in job.avoid:
        return f"this is the only node, and {machine.name} is to be avoided"
    if job.needs.gpu and job.needs.gpu not in machine.gpus.values():
        there = ", ".join(sorted(set(machine.gpus.values()))) or "no GPU"
        return f"this machine has {there}, not {job.needs.gpu}"
    if job.needs.gpus > 1:
        return "this machine runs one job a GPU, and this one wants several"
    return None


def choose(queued: Sequence[Job], running: Iterable[tuple[Needs, str | None]], machine: Machine) -> list[Begin]:
    """What to begin, in the order of the queue; a job too large for the machine begins when nothing else runs."""
    busy = list(running)
    free = {device: sm for device, sm in machine.gpus.items() if device not in {used for _, used in busy}}
    cpus = machine.cpus - sum(needs.cpus for needs, _ in busy)
    memory = machine.memory - sum(needs.memory for needs, _ in busy)
    found: list[Begin] = []
    for job in queued:
        device = next((index for index, sm in free.items() if sm == job.needs.gpu), None)
        if job.needs.gpu and device is None:
            continue
        fits = job.needs.cpus <= cpus and job.needs.memory <= memory
        if not fits and (busy or found):
            continue
        if device is not None:
            del free[device]
        cpus, memory = cpus - job.needs.cpus, memory - job.needs.memory
        found.append(Begin(job=job, device=device))
    return found
