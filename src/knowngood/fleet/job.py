"""A job of a fleet: the suite in one image or environment, what it needs of a node, and how it stands. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a node must have."""

    gpu: str | None = None
    """Compute architecture (`sm_90`); `None`: the suite runs on a CPU."""
    gpus: int = 0
    driver: str | None = None
    """The NVIDIA driver it takes at least (`580.65.06`); an engine may know less of it than that."""
    cpus: int = 2
    memory: int = 12 << 30
    """Bytes of the host."""
    seconds: int = 1200
    """The suite's own time limit. An engine's limit is this and `GRACE`."""


GRACE = 120
"""Seconds beyond the suite's own limit: an image is pulled, a container starts, a report is written."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """In what the suite runs; exactly one of the two is given."""

    image: str | None = None
    """`repository@sha256:...`."""
    environment: str | None = None
    """A folder that every node sees, with a locked environment (`bin/python`) in it; for sites without containers."""
    content: str
    """What the evidence is about: the image's digest, or the lock's digest for an environment."""
    config: str | None = None
    """The digest of the image's configuration, which names each layer's bytes: the image's id in an engine whose store
    keeps no manifests."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of the suite for one cell."""

    cell: str
    subject: Subject
    suite: str
    """The suite's hash."""
    command: tuple[str, ...]
    """The suite's own arguments; the engine puts a Python, the suite's folder and the report's path around them."""
    predictions: Mapping[str, Any]
    needs: Needs
    avoid: frozenset[str] = frozenset()
    """Nodes, by the engine's names for them, that must not run it: they failed what others passed."""
    attempt: int = 1

    @cached_property
    def key(self) -> str:
        """What identifies the job to any engine (24 hexadecimal digits): the same work has the same key."""
        shaped = {
            "cell": self.cell,
            "content": self.subject.content,
            "suite": self.suite,
            "command": self.command,
            "needs": asdict(self.needs),
            "avoid": sorted(self.avoid),
            "attempt": self.attempt,
        }
        return hashlib.sha256(json.dumps(shaped, sort_keys=True).encode()).hexdigest()[:24]


class State(StrEnum):
    """How a job stands at its engine."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    """The suite came to an end, whatever it says: there should be a report."""
    FAILED = "failed"
    """It ended without the suite's end; `Status.cause` says why."""
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """The engine will never run it: no such partition, no node with that GPU, a quota."""
    LOST = "lost"
    """The engine does not know it (any more)."""

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self not in (State.QUEUED, State.RUNNING)


class Cause(StrEnum):
    """Why a job ended without the suite's end, or never began."""

    TIME_LIMIT = "time-limit"
    NODE = "node"
    """The node failed, was drained or taken away."""
    MEMORY = "memory"
    IMAGE_PULL = "image-pull"
    QUOTA = "quota"
    NO_NODE = "no-node"
    """No node satisfies the requirements."""
    ENGINE = "engine"
    """The engine said no (no such partition, account, namespace)."""
    CRASH = "crash"
    """The suite's process ended and left no report."""

    @property
    def again(self) -> bool:
        """Whether the same job may go better on another try, nothing changed: it is nobody's verdict on the image."""
        return self in (Cause.NODE, Cause.IMAGE_PULL)


@dataclass(frozen=True, kw_only=True)
class Status:
    """What an engine says of a job now."""

    state: State
    cause: Cause | None = None
    text: str = ""
    """A sentence for a person; the engine's own words are in it."""
    node: str | None = None
    """The engine's name of the node that runs or ran it."""
    exit_code: int | None = None
    queued: float | None = None
    """Seconds it waited; by the engine's clock alone, since the one here may be off."""
    ran: float | None = None
    """Seconds it ran; by the engine's clock alone."""
