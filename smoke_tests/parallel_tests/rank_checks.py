"""Runs one check on this rank. ``smoke_tests.worker`` calls ``run`` and turns what is raised into an outcome."""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
from functools import partial
from typing import TYPE_CHECKING, Any

from parallel_tests import comparisons, connection, faults, hugging_face
from parallel_tests.catalogue import FAULTS
from smoke_tests.outcomes import NotRun, demand_noticed
from smoke_tests.precision import PRECISIONS

if TYPE_CHECKING:
    from parallel_tests.world import World

WAYS = {
    "ddp": "parallel_tests.replicated.Replicated",
    "fsdp2": "parallel_tests.sharded.Sharded",
    "zero2": "parallel_tests.zero.Zero",
    "zero3": "parallel_tests.zero.Zero3",
    "tensor": "parallel_tests.tensor_split.TensorSplit",
    "context": "parallel_tests.sequence_split.SequenceSplit",
    "engine-context": "parallel_tests.engine_context.EngineContext",
}
"""The class of each way of training."""


class Place:
    """Where this process stands among the others; the rank's main program fills it in."""

    world: World


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Run the check; every rank runs the same one at the same time."""
    if check["detail"] == "launcher":
        faults.LAUNCHER[check["layout"]](Place.world)
        return
    if check["detail"] == "connection":
        connection.run_connection(Place.world, report)
        return
    compare = _comparison(check, report)
    try:
        if not check["mode"]:
            compare(report=report)
            return
        reason = FAULTS[check["detail"]][check["mode"]].reason
        try:
            report["noticed"] = demand_noticed(lambda: compare(report=report), f"^{reason}: ")
        except comparisons.Unreadable as error:
            if not str(error).startswith(f"{reason}: "):
                raise
            report["noticed"] = str(error)
            report["left"] = True
    finally:
        gc.collect()


def _comparison(check: dict[str, Any], report: dict[str, Any]) -> Any:
    compared, fault = check["layout"], check["mode"]
    given = {"world": Place.world, "precision": PRECISIONS[check["dtype"]]}
    if check["detail"] == "trainer":
        return partial(hugging_face.compare_trainer, **given, per_rank=bool(fault))
    module, _, name = WAYS[check["detail"]].rpartition(".")
    given["make"] = make = getattr(importlib.import_module(module), name)
    if make.package is not None:
        report["package"] = f"{make.package} {_version(make.package)}"
    if compared == "checkpoint":
        damage = faults.DAMAGES[check["detail"], fault] if fault else None
        return partial(comparisons.compare_checkpoint, **given, damage=damage)
    made = faults.FAULTS[check["detail"], fault] if fault else None
    return partial(comparisons.compare_steps, **given, batches=2 if compared == "accumulated" else 1, fault=made)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise NotRun(f"{package} is not installed") from None
