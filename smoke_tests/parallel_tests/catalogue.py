"""The list of checks, by the way of training. Pure data; nothing heavy is imported.

A check's id is ``parallel/ddp/sdpa/fp32/accumulated``: the way of training, the attention setting, the precision, what
is compared, and the fault that was made on purpose, if there is one.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from smoke_tests.catalogue import Check

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 120.0
COMPARED = ("step", "accumulated", "checkpoint")
"""One batch on each rank, two accumulated ones, and training that goes on from a checkpoint."""

PLAIN_WAYS = ("ddp", "fsdp2", "tensor", "context", "zero2", "zero3")
WAYS = ("trainer", *PLAIN_WAYS, "engine-context")
FAULTS = {
    "ddp": {
        "rank-keeps-its-own": "step",
        "averaged-twice": "step",
        "foreign-data": "step",
        "own-mean": "step",
        "reduction-skipped": "accumulated",
    },
    "fsdp2": {
        "averaged-twice": "step",
        "foreign-data": "step",
        "shard-shifted": "step",
        "shard-lost": "checkpoint",
        "stale-shard": "checkpoint",
    },
    "tensor": {"reduction-forgotten": "step", "shard-shifted": "step"},
    "context": {"positions-split": "step", "seam-lost": "step", "rank-keeps-its-own": "step"},
    "zero2": {"averaged-twice": "step", "foreign-data": "step", "stale-shard": "checkpoint"},
    "zero3": {"foreign-data": "step", "shard-shifted": "step", "shard-lost": "checkpoint", "stale-shard": "checkpoint"},
}
"""The faults of each way of training, and the comparison that must notice them."""
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
        for fault, compared in FAULTS.get(way, {}).items():
            yield check_of(way, "fp32", compared, fault, quick=True)
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
