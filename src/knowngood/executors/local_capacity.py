"""Which jobs this machine can start now: one per GPU, the others as processors and memory allow. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from knowngood.executors.job import JobNeeds, SuiteJob

RunningJob = tuple[JobNeeds, str | None]
"""What a running job occupies: its needs, and the index of its GPU."""


@dataclass(frozen=True, kw_only=True)
class LocalMachine:
    """The resources of this machine; memory in bytes."""

    name: str
    cpus: int
    memory: int
    gpus: Mapping[str, str] = field(default_factory=dict)
    """Index -> architecture."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A job that can start now, and the index of its GPU if it needs one."""

    job: SuiteJob
    device: str | None = None


def machine_refusal(job: SuiteJob, machine: LocalMachine) -> str | None:
    """Return why this machine can never run a job; `None` if it can."""
    if machine.name in job.avoid:
        return f"{machine.name} is the only node here, and the job must avoid it"
    if job.needs.gpu and job.needs.gpu not in machine.gpus.values():
        present = ", ".join(sorted(set(machine.gpus.values()))) or "no GPU"
        return f"this machine has {present}, not {job.needs.gpu}"
    if job.needs.gpus > 1:
        return "this machine gives each job one GPU, and the job needs several"
    return None


def choose_placements(
    queued: Sequence[SuiteJob], running: Iterable[RunningJob], machine: LocalMachine
) -> list[Placement]:
    """Choose what to start, in the order of the queue. A job too large for the machine starts when no other runs."""
    occupied = list(running)
    free = {index: sm for index, sm in machine.gpus.items() if index not in {device for _, device in occupied}}
    cpus = machine.cpus - sum(needs.cpus for needs, _ in occupied)
    memory = machine.memory - sum(needs.memory for needs, _ in occupied)
    placements: list[Placement] = []
    for job in queued:
        device = next((index for index, sm in free.items() if sm == job.needs.gpu), None)
        if job.needs.gpu and device is None:
            continue
        fits = job.needs.cpus <= cpus and job.needs.memory <= memory
        if not fits and (occupied or placements):
            continue
        if device is not None:
            del free[device]
        cpus, memory = cpus - job.needs.cpus, memory - job.needs.memory
        placements.append(Placement(job=job, device=device))
    return placements
