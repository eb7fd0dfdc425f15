"""Faults that are put into the path of a training on megatron-core on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    Batch = dict[str, torch.Tensor]


def _in_batches(change: Callable[[Batch], None]) -> Callable[[Any], None]:
    def put(user: Any) -> None:
        plain = user.batches

        def batches() -> Any:
            for batch in plain():
                change(batch)
                yield batch

        user.batches = batches

    return put


def _shift_labels(batch: Batch) -> None:
    batch["labels"] = batch["labels"].roll(1, dims=-1)


def _train_prompt(batch: Batch) -> None:
    batch["loss_mask"] = (batch["labels"] != tiny.PAD).float()


def _train_padding(batch: Batch) -> None:
    batch["loss_mask"] = torch.where(batch["labels"] == tiny.PAD, 1.0, batch["loss_mask"])


def _train_ends(batch: Batch) -> None:
    batch["loss_mask"] = torch.ones_like(batch["loss_mask"])


def _ignore_seams(batch: Batch) -> None:
    length = batch["tokens"].shape[-1]
    batch["attention_mask"] = torch.ones(len(batch["tokens"]), 1, length, length, dtype=torch.bool).triu(1)


def _drop_row(batch: Batch) -> None:
    batch["loss_mask"][0] = 0.0


def _count_twice(user: Any) -> None:
    plain = user.loss_function

    def loss_function(loss_mask: torch.Tensor, output: torch.Tensor) -> Any:
        loss, count, log = plain(loss_mask, output)
        return loss, count * 2, log

    user.loss_function = loss_function


def _take_means(user: Any) -> None:
    user.model.config.calculate_per_token_loss = False


def _lose_first_batch(user: Any) -> None:
    plain, calls = user.forward_step, []

    def forward_step(iterator: Any, model: Any) -> Any:
        calls.append(iterator)
        if len(calls) == 2:
            user.model.zero_grad_buffer()
        return plain(iterator, model)

    user.forward_step = forward_step


def _freeze_weight(user: Any) -> None:
    frozen = next(value for name, value in user.model.named_parameters() if "layers.1.mlp.linear_fc2" in name)
    for group in user.optimizer.param_groups:
        group["params"] = [value for value in group["params"] if value is not frozen]


def _skip_steps(user: Any) -> None:
    plain = user.batches

    def batches() -> Any:
        for _ in range(user.taken * user.options["num_microbatches"]):
            yield {}
        yield from plain()

    user.batches = batches


FAULTS: dict[str, Callable[[Any], None]] = {
    "labels-shifted": _in_batches(_shift_labels),
    "prompt-trained": _in_batches(_train_prompt),
    "padding-trained": _in_batches(_train_padding),
    "ends-trained": _in_batches(_train_ends),
    "seams-ignored": _in_batches(_ignore_seams),
    "row-dropped": _in_batches(_drop_row),
    "counted-twice": _count_twice,
    "mean-of-means": _take_means,
    "first-batch-lost": _lose_first_batch,
    "weight-frozen": _freeze_weight,
}
"""Each is put into a training that has not begun."""
RESUMED_FAULTS: dict[str, Callable[[Any], None]] = {"steps-skipped": _skip_steps}
"""Each is put into a training that has loaded its checkpoint."""
