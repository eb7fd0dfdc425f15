"""Faults that are put into a trainer's path on purpose, of kinds that trainers have had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import tiny

from smoke_tests import data

if TYPE_CHECKING:
    from collections.abc import Callable

Batch = dict[str, Any]


def in_batches(change: Callable[[Batch], None]) -> Callable[[Any], None]:
    """A fault that changes every batch that the trainer's collator makes."""

    def put(trainer: Any) -> None:
        plain = trainer.data_collator

        def collate(examples: list[Any]) -> Batch:
            batch = plain(examples)
            change(batch)
            return batch

        trainer.data_collator = collate

    return put


def _shift_labels(batch: Batch) -> None:
    batch["labels"] = batch["labels"].roll(1, dims=-1)


def _train_everything(batch: Batch) -> None:
    filled = batch["input_ids"] == tiny.PAD
    batch["labels"] = batch["input_ids"].masked_fill(filled, data.IGNORED)


def _train_padding(batch: Batch) -> None:
    filled = batch["input_ids"] == tiny.PAD
    batch["labels"] = torch.where(filled, batch["input_ids"], batch["labels"])


def _ignore_seams(batch: Batch) -> None:
    for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"):
        batch.pop(name, None)
    if "attention_mask" in batch and batch["attention_mask"].dim() > 2:
        batch.pop("attention_mask")
    batch["position_ids"] = torch.arange(batch["input_ids"].shape[-1])[None]


def _drop_row(batch: Batch) -> None:
    trained = (batch["labels"][0] != data.IGNORED).tolist()
    first = trained.index(True)
    after = trained.index(False, first) if False in trained[first:] else len(trained)
    batch["labels"][0, first:after] = data.IGNORED


def _count(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def put(trainer: Any) -> None:
        plain = trainer._get_num_items_in_batch
        trainer._get_num_items_in_batch = lambda *words, **options: change(plain(*words, **options))

    return put


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
    frozen = next(item for name, item in trainer.model.named_parameters() if "layers.1" in name and "lora_B" in name)
    frozen.requires_grad_(False)


def _train_base(trainer: Any) -> None:
    dict(trainer.model.named_parameters())["base_model.model.lm_head.weight"].requires_grad_(True)


def _skip_steps(trainer: Any) -> None:
    trainer.args.ignore_data_skip = True


def _shift_labels_later(trainer: Any) -> None:
    plain = trainer.training_step

    def training_step(built: Any, inputs: Any, *words: Any, **options: Any) -> Any:
        if trainer.state.global_step:
            _shift_labels(inputs)
        return plain(built, inputs, *words, **options)

    trainer.training_step = training_step


def _decay(trainer: Any) -> None:
    trainer.args.weight_decay = 0.01


def _in_saved(change: Callable[[str, torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]) -> Callable[[Any], None]:
    """A fault in what is written: each weight is given with those that the training began with."""

    def put(trainer: Any) -> None:
        plain = trainer._save
        begun = {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}

        def save(output_dir: Any = None, state_dict: Any = None) -> None:
            held = state_dict or trainer.model.state_dict()
            plain(output_dir, state_dict={name: change(name, value, begun) for name, value in held.items()})

        trainer._save = save

    return put


FAULTS: dict[str, Callable[[Any], None]] = {
    "labels-shifted": in_batches(_shift_labels),
    "prompt-trained": in_batches(_train_everything),
    "padding-trained": in_batches(_train_padding),
    "seams-ignored": in_batches(_ignore_seams),
    "row-dropped": in_batches(_drop_row),
    "counted-twice": _count(lambda number: number * 2),
    "mean-of-means": _count(lambda _number: None),
    "first-batch-lost": _lose_first_batch,
    "adapter-frozen": _freeze_adapter,
    "base-trained": _train_base,
    "labels-shifted-later": _shift_labels_later,
    "decay-unasked": _decay,
    "layer-saved-stale": _in_saved(lambda name, value, begun: begun[name] if "layers.1.mlp" in name else value),
    "adapter-saved-halved": _in_saved(lambda name, value, _begun: value / 2 if "lora_B" in name else value),
}
"""Each is put into a trainer that is built and has not trained."""
RESUMED_FAULTS: dict[str, Callable[[Any], None]] = {"steps-skipped": _skip_steps}
"""Each is put into a trainer that will go on from a checkpoint."""
