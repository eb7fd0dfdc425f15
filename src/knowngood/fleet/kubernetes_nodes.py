"""Which nodes may run a job: its needs as node affinity over the labels of NVIDIA's GPU feature discovery. Pure.

The labels are those that its sources write (k8s-device-plugin, internal/lm/nvml.go): the compute capability as
`nvidia.com/gpu.compute.major` and `.minor`, the driver's version cut at its dots under two names. `Gt` and `Lt` compare
whole numbers, and read `02` as 2; an empty label (a driver without a third number) is no number and matches neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from knowngood.errors import UsageError
from knowngood.fleet.job import Needs

COMPUTE = ("nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor")
DRIVER = (
    (
        "nvidia.com/cuda.driver-version.major",
        "nvidia.com/cuda.driver-version.minor",
        "nvidia.com/cuda.driver-version.revision",
    ),
    ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev"),
)
"""The names of today and the deprecated ones, which are all that older releases write."""
GPU = "nvidia.com/gpu"

Expression = Mapping[str, Any]


def affinity(needs: Needs, avoid: Iterable[str]) -> dict[str, Any] | None:
    """The pod's `affinity`; `None` where any node will do."""
    capability = _capability(needs.gpu) if needs.gpu else []
    fields = [_expression("metadata.name", "NotIn", node) for node in sorted(avoid)]
    drivers = _drivers(needs.driver) if needs.gpu and needs.driver else [[]]
    terms = [_term([*capability, *driver], fields) for driver in drivers]
    if not any(terms):
        return None
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _term(expressions: Sequence[Expression], fields: Sequence[Expression]) -> dict[str, Any]:
    term = {"matchExpressions": [*expressions], "matchFields": [*fields]}
    return {key: value for key, value in term.items() if value}


def _capability(gpu: str) -> list[Expression]:
    match = re.fullmatch(r"sm_(\d{1,2})(\d)", gpu)
    if not match:
        raise UsageError(f"{gpu!r} is no compute architecture; one is written like sm_90")
    return [_expression(label, "In", number) for label, number in zip(COMPUTE, match.groups(), strict=True)]


def _drivers(least: str) -> list[list[Expression]]:
    """The ways to be at least this driver, under either name of the labels: a later major, or the same and ..."""
    if not re.fullmatch(r"\d+(\.\d+){0,2}", least):
        raise UsageError(f"{least!r} is no driver version; one is written like 580.65.06")
    wanted = [int(part) for part in least.split(".")]
    while len(wanted) > 1 and not wanted[-1]:  # x.0 is every x, also where the label is empty
        wanted.pop()
    ways = []
    for labels in DRIVER:
        parts = list(zip(labels, wanted, strict=False))
        for place, (label, number) in enumerate(parts):
            last = place == len(parts) - 1
            same = [item for before, value in parts[:place] for item in _equal(before, value)]
            ways.append([*same, _expression(label, "Gt", str(number - last))])
    return ways


def _equal(label: str, number: int) -> list[Expression]:
    """As numbers, since a label may be `02`; a `-1` is no label's value, so nothing is below 0."""
    above = [_expression(label, "Gt", str(number - 1))] if number else []
    return [*above, _expression(label, "Lt", str(number + 1))]


def _expression(key: str, operator: str, value: str) -> Expression:
    return {"key": key, "operator": operator, "values": [value]}
