"""The task of one cell, the choice of the task that starts next, and the result of a cell. Pure.

As many tasks run at once as memory and disk allow. A task waits while another one makes layers that it needs. Results
go from one process to another as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from knowngood.core.errors import KnowngoodError
from knowngood.evidence.run_evidence import Tier
from knowngood.images.build_command import Image
from knowngood.images.matrix_plan import Holdings, LayerKey, PlanInput, layers_to_build

MEMORY_TO_BUILD = 2 * 10**9
"""The most bytes of memory that a build with many layers takes."""
MEMORY_TO_PROVE = 4 * 10**9
"""The most bytes of memory that the suite takes."""
DISK_PER_BYTE = 7
"""Bytes on disk for each byte of a wheel while its layer is made: unpacked three times, and compressed."""
DISK_AT_LEAST = 3
"""Bytes on disk that remain for each byte of a wheel; a build that was stopped may have written the rest already."""
LARGE_LAYER = 50 * 10**6
"""Bytes of wheels from which on it is worth waiting for another task that builds the same layer."""


@dataclass(frozen=True, kw_only=True)
class MachineResources:
    """The bytes of memory and disk that a machine has left, or that a task takes."""

    memory: int
    disk: int


@dataclass(frozen=True, kw_only=True)
class BuildTask:
    """A cell to be built, and what that takes of the machine."""

    cell: str
    need: MachineResources
    makes: frozenset[LayerKey] = frozenset()
    """The large layers that it builds."""


@dataclass(frozen=True, kw_only=True)
class ScheduleWait:
    """Why no task starts now, as a text for people."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class ScheduleRefusal:
    """A task that this machine can never run, however long it waits."""

    task: BuildTask
    reason: str


def task_for_cell(item: PlanInput, holdings: Holdings, *, prove: bool) -> BuildTask:
    """Return the task of a cell; what it needs is estimated from the size of its wheels."""
    missing = layers_to_build(item, holdings)
    memory = MEMORY_TO_BUILD if missing or item.shape is None else 0
    return BuildTask(
        cell=item.cell,
        need=MachineResources(
            memory=max(memory, MEMORY_TO_PROVE if prove else 0),
            disk=DISK_PER_BYTE * sum(size for _, size in missing),
        ),
        makes=frozenset(key for key, size in missing if size >= LARGE_LAYER),
    )


def choose_task(
    waiting: Sequence[BuildTask],
    running: Collection[BuildTask],
    free: MachineResources,
    *,
    jobs: int,
) -> BuildTask | ScheduleRefusal | ScheduleWait:
    """Return the task to start now, or why none starts.

    `free` is what the machine has left; running tasks may not have taken all of theirs yet.
    """
    if len(running) >= jobs:
        return ScheduleWait(reason=f"{jobs} at once")
    reasons = []
    for task in waiting:
        makers = [other.cell for other in running if other.makes & task.makes]
        if makers:
            reasons.append(f"{task.cell} waits for layers that {makers[0]} builds")
        elif not running:
            if task.need.disk * DISK_AT_LEAST > free.disk * DISK_PER_BYTE:
                return ScheduleRefusal(task=task, reason=_describe_lack_of_disk(task, free))
            return task
        elif reason := _describe_shortage(task, running, free):
            reasons.append(reason)
        else:
            return task
    return ScheduleWait(reason=reasons[0] if reasons else "nothing is left to start")


def _describe_shortage(task: BuildTask, running: Collection[BuildTask], free: MachineResources) -> str | None:
    for name in ("memory", "disk"):
        taken = sum(getattr(other.need, name) for other in running)
        left = max(0, getattr(free, name) - taken)
        if getattr(task.need, name) > left:
            need = getattr(task.need, name) / 1e9
            return f"{task.cell} waits for {name}: it takes up to {need:.0f} GB, {left / 1e9:.0f} GB are left"
    return None


def _describe_lack_of_disk(task: BuildTask, free: MachineResources) -> str:
    return (
        f"{task.cell} takes up to {task.need.disk / 1e9:.0f} GB of disk while it is built, {free.disk / 1e9:.0f} GB "
        "are free; make space (`docker system prune`, `knowngood engine down`), or select another cell"
    )


class CellStatus(StrEnum):
    """The outcome of a cell after a run of the pipeline."""

    PROVEN = "proven"
    UNCHANGED = "unchanged"
    """Nothing that it depends on has changed since it was proven; nothing was done."""
    BUILT = "built"
    DIFFERENT = "different"
    """The image was built, but its digests are not those of the committed record."""
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell's line in the summary."""

    cell: str
    status: CellStatus
    seconds: float
    tier: Tier = Tier.NONE
    image: Image | None = None
    evidence: Path | None = None
    note: str = ""
    error: KnowngoodError | None = None

    def document(self, root: Path) -> dict[str, Any]:
        """Return the result as a document for `--json`; its paths are relative to the project's root."""
        image = self.image
        return {
            "id": self.cell,
            "status": str(self.status),
            "tier": str(self.tier),
            "image": {"tag": image.tag, "digest": image.digest, "bytes": image.size, "built": image.built}
            if image
            else None,
            "seconds": round(self.seconds, 1),
            "evidence": str(self.evidence.relative_to(root)) if self.evidence else None,
            "note": self.note,
            "error": str(self.error) if self.error else None,
            "exit": self.error.exit_code if self.error else 0,
        }

    @classmethod
    def from_document(cls, stored: Mapping[str, Any], root: Path) -> CellResult:
        """Return the result from the document that `document` gave."""
        image = stored["image"]
        error = KnowngoodError(stored["error"]) if stored["error"] else None
        if error:
            error.exit_code = stored["exit"]
        return cls(
            cell=stored["id"],
            status=CellStatus(stored["status"]),
            seconds=stored["seconds"],
            tier=Tier(stored["tier"]),
            image=Image(tag=image["tag"], digest=image["digest"], size=image["bytes"], built=image["built"])
            if image
            else None,
            evidence=root / stored["evidence"] if stored["evidence"] else None,
            note=stored["note"],
            error=error,
        )
