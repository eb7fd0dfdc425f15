"""Faults that are put into the path of TRL's DPO and GRPO on purpose."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from smoke_tests.trainers import tiny, trainer_faults

if TYPE_CHECKING:
    from collections.abc import Callable

Batch = dict[str, Any]


def _swap_pairs(batch: Batch) -> None:
    for name in ("input_ids", "attention_mask", "completion_mask"):
        batch[name] = batch[name].roll(len(batch[name]) // 2, dims=0)


def _ignore_ends(batch: Batch) -> None:
    batch["completion_mask"] = batch["completion_mask"].masked_fill(batch["input_ids"] == tiny.END, 0)


def _adapt_reference(trainer: Any) -> None:
    plain = trainer._compute_loss

    def compute_loss(*words: Any) -> Any:
        with mock.patch("trl.trainer.dpo_trainer.use_adapter", return_value=contextlib.nullcontext()):
            return plain(*words)

    trainer._compute_loss = compute_loss


def _shuffle_advantages(trainer: Any) -> None:
    plain = trainer._compute_loss
    trainer._compute_loss = lambda built, inputs: plain(built, {**inputs, "advantages": inputs["advantages"].roll(1)})


FAULTS: dict[str, Callable[[Any], None]] = {
    **trainer_faults.FAULTS,
    "pairs-swapped": trainer_faults.in_batches(_swap_pairs),
    "end-ignored": trainer_faults.in_batches(_ignore_ends),
    "reference-adapted": _adapt_reference,
    "advantages-shuffled": _shuffle_advantages,
}
