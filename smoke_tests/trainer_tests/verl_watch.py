"""What verl's own processes keep for the checks. They import it, by ``actor_rollout_ref.model.external_lib``.

Of each update of the policy the samples are kept, of the first one also weights, gradients, loss and kernels. A fault
on purpose is put in here too, since nothing else of the checks is in that process.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import verl_faults
from smoke_tests.trainers.verl_place import FAULT, FOLDER
from smoke_tests.trainers.verl_record import EngineRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

FIELDS = ("prompts", "responses", "response_mask", "rollout_log_probs")
KEPT = ("trainer", "weights", "gradients", "after", "batches", "loss", "kernels")


def copy_rows(data: Any) -> dict[str, list[torch.Tensor]]:
    """The samples of an update as verl holds them, a tensor a row and field."""
    return {name: [row.detach().cpu().clone() for row in data[name].unbind()] for name in FIELDS}


def _watch() -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
    from verl.workers.engine_workers import TrainingWorker

    fault = os.environ[FAULT]
    plain, parameters = TrainingWorker.train_mini_batch, FSDPEngine.get_per_tensor_param
    updates: list[str] = []
    sent: list[tuple[str, torch.Tensor]] = []

    @functools.wraps(plain)
    def train_mini_batch(worker: Any, data: Any) -> Any:
        kept: dict[str, Any] = {"samples": copy_rows(data)}
        first = not updates
        updates.append(f"update-{len(updates)}.pt")
        if fault in verl_faults.DATA_FAULTS:
            verl_faults.DATA_FAULTS[fault](data)
        if first:
            verl_faults.put_into_engine(fault, worker.engine)
            record = EngineRecord(worker.engine, type(worker).__name__, torch.device("cuda"))
        done = plain(worker, data)
        if first:
            kept |= {name: getattr(record, name) for name in KEPT}
            kept["implementation"] = str(worker.model_config.hf_config._attn_implementation)
        torch.save(kept, Path(os.environ[FOLDER]) / updates[-1])
        return done

    @functools.wraps(parameters)
    def get_per_tensor_param(engine: Any, *words: Any, **known: Any) -> Any:
        values, adapters = parameters(engine, *words, **known)
        return (_first_ones(values, sent) if fault == "weights-not-sent" else values), adapters

    TrainingWorker.train_mini_batch = train_mini_batch
    FSDPEngine.get_per_tensor_param = get_per_tensor_param


def _first_ones(values: Any, sent: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that were sent first, for ever: what generates stays as it was."""
    if not sent:
        sent.extend((name, value.detach().clone()) for name, value in values)
    yield from sent


_watch()
