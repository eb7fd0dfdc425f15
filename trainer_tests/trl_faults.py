"""Faults that are put into TRL's path on purpose, of kinds that trainers have had. The comparison must see them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from smoke_tests.trainers import tiny

from smoke_tests import data

if TYPE_CHECKING:
    from collections.abc import Callable

Batch = dict[str, Any]


def put(fault: str, trainer: Any) -> None:
    """Put a fault into a trainer that is built and has not trained."""
    if fault in _BATCHES:
        _change_batches(trainer, _BATCHES[fault])
    elif fault in _TRAINERS:
        _TRAINERS[fault](trainer)


def put_after_resumption(fault: str, trainer: Any) -> None:
    """Put a fault into a trainer that will go on from a checkpoint."""
    if fault == "steps-skipped":
        trainer.args.ignore_data_skip = True


def _change_batches(trainer: Any, change: Callable[[Batch], None]) -> None:
    plain = trainer.data_collator

    def collate(examples: list[Any]) -> Batch:
        batch = plain(examples)
        change(batch)
        return batch

    trainer.data_collator = collate


def _shift_labels(batch: Batch) -> None:
    batch["labels"] = batch["labels"].roll(1, dims=-1)


def _train_everything(batch: Batch) -> None:
    filled = batch["input_ids"] == tiny.PAD
    batch["labels"] = batch["input_ids"].masked_fill(filled, data.IGNORED)


def _train_padding(batch: Batch) -> None:
    batch["labels"] = batch["input_ids"]


def _ignore_seams(batch: Batch) -> None:
    for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"):
        batch.pop(name, None)
    batch["position_ids"] = torch.arange(batch["input_ids"].shape[-1])[None]


def _drop_row(batch: Batch) -> None:
    end = (batch["input_ids"][0] == tiny.END).nonzero().flatten()[0]
    batch["labels"][0, : end + 1] = data.IGNORED


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


def _count(trainer: Any, change: Callable[[Any], Any]) -> None:
    plain = trainer._get_num_items_in_batch
    trainer._get_num_items_in_batch = lambda *words, **options: change(plain(*words, **options))


def _lose_first_batch(trainer: Any) -> None:
    plain, calls = trainer.training_step, []

    def training_step(built: Any, *words: Any, **options: Any) -> Any:
        loss = plain(built, *words, **options)
        calls.append(loss)
        if len(calls) == 1:
            built.zero_grad()
        return loss

    trainer.training_step = training_step


def _freeze_adapter(trainer: Any) -> None:
    name, parameter = next(
        item for item in trainer.model.named_parameters() if "layers.1" in item[0] and "lora_B" in item[0]
    )
    del name
    parameter.requires_grad_(False)


def _train_base(trainer: Any) -> None:
    dict(trainer.model.named_parameters())["base_model.model.lm_head.weight"].requires_grad_(True)


_BATCHES: dict[str, Callable[[Batch], None]] = {
    "labels-shifted": _shift_labels,
    "prompt-trained": _train_everything,
    "padding-trained": _train_padding,
    "seams-ignored": _ignore_seams,
    "row-dropped": _drop_row,
    "pairs-swapped": _swap_pairs,
    "end-ignored": _ignore_ends,
}
_TRAINERS: dict[str, Callable[[Any], None]] = {
    "counted-twice": lambda trainer: _count(trainer, lambda number: number * 2),
    "mean-of-means": lambda trainer: _count(trainer, lambda _number: None),
    "first-batch-lost": _lose_first_batch,
    "adapter-frozen": _freeze_adapter,
    "base-trained": _train_base,
    "reference-adapted": _adapt_reference,
    "advantages-shuffled": _shuffle_advantages,
}
