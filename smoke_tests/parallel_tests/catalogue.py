"""The list of checks, by the way of training. Pure data; nothing heavy is imported.

A check's id is ``parallel/ddp/sdpa/fp32/accumulated``: the way of training, the attention setting, the precision, what
is compared, and the fault that was made on purpose, if there is one.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, NamedTuple

from smoke_tests.catalogue import Check

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 120.0
COMPARED = ("step", "accumulated", "checkpoint")
"""One batch on each rank, two accumulated ones, and training that goes on from a checkpoint."""

PLAIN_WAYS = ("ddp", "fsdp2", "tensor", "context", "zero2", "zero3")
WAYS = ("trainer", *PLAIN_WAYS, "engine-context")


class Noticed(NamedTuple):
    """The comparison that must notice a fault, and what it must say: anything else is an accident."""

    compared: str
    reason: str


FIRST, LATER = Noticed("step", "first-step-off"), Noticed("accumulated", "later-step-off")
UPDATE, LOADED = Noticed("step", "update-off"), Noticed("checkpoint", "loaded-elsewhere")
UNREADABLE = Noticed("checkpoint", "unreadable")
FAULTS = {
    "trainer": {"mean-of-means": Noticed("accumulated", "first-step-off")},
    "ddp": {
        "rank-keeps-its-own": FIRST,
        "averaged-twice": FIRST,
        "foreign-data": FIRST,
        "own-mean": FIRST,
        "reduction-skipped": Noticed("accumulated", "first-step-off"),
        "reduction-skipped-later": LATER,
        "rate-raised": UPDATE,
        "one-rank-decays": UPDATE,
    },
    "fsdp2": {
        "averaged-twice": FIRST,
        "foreign-data": FIRST,
        "shard-shifted": FIRST,
        "rank-seeded-otherwise": FIRST,
        "rate-raised": UPDATE,
        "one-rank-decays": UPDATE,
        "shard-lost": UNREADABLE,
        "shard-twice": UNREADABLE,
        "stale-shard": LOADED,
    },
    "tensor": {"reduction-forgotten": FIRST, "shard-shifted": FIRST, "rate-raised": UPDATE},
    "context": {"positions-split": FIRST, "seam-lost": FIRST, "rank-keeps-its-own": FIRST, "rate-raised": UPDATE},
    "zero2": {"averaged-twice": FIRST, "foreign-data": FIRST, "rate-raised": UPDATE, "stale-shard": LOADED},
    "zero3": {
        "foreign-data": FIRST,
        "shard-shifted": FIRST,
        "rate-raised": UPDATE,
        "shard-lost": UNREADABLE,
        "stale-shard": LOADED,
    },
}
"""The faults of each way of training, and how each must be noticed."""
LAUNCHER = {"rank-crashes": 60.0, "rank-raises": 60.0, "rank-hangs": 12.0}
"""Faults of one process, which the launcher must name, and the time limit of each in seconds."""


def checks() -> Iterator[Check]:
    """All checks; those of one way of training follow each other and share their processes."""
    yield Check("parallel", layout="all-reduce", detail="connection", timeout=TIMEOUT, quick=True)
    for compared in ("step", "accumulated", "checkpoint"):
        yield check_of("engine-context", "bf16", compared)
    yield check_of("trainer", "fp32", "accumulated", quick=True)
    yield check_of("trainer", "fp32", "accumulated", "mean-of-means", quick=True)
    for way in PLAIN_WAYS:
        for compared in COMPARED:
            yield check_of(way, "fp32", compared, quick=True)
        yield check_of(way, "bf16", "accumulated")
        for fault, noticed in FAULTS[way].items():
            yield check_of(way, "fp32", noticed.compared, fault, quick=True)
    for fault, timeout in LAUNCHER.items():
        yield Check("parallel", layout=fault, detail="launcher", timeout=timeout, quick=fault == "rank-crashes")


def check_of(way: str, dtype: str, compared: str, fault: str = "", *, quick: bool = False) -> Check:
    """One check of one way of training."""
    return Check("parallel", "sdpa", dtype, compared, fault, detail=way, quick=quick, timeout=TIMEOUT)


def select(patterns: list[str], *, quick: bool) -> list[Check]:
    """The checks whose id matches one of the patterns (all, without patterns), the quick ones alone if asked."""
    return [
        check
        for check in checks()
        if (check.quick or not quick)
        and (not patterns or any(fnmatch.fnmatchcase(check.id, pattern) for pattern in patterns))
    ]
