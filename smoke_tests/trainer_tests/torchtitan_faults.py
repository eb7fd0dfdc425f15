"""Faults that are put into torchtitan's path on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import tiny

from smoke_tests import data

if TYPE_CHECKING:
    from collections.abc import Callable

    Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


def _in_batches(change: Callable[[dict[str, torch.Tensor], torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    """A fault that makes other labels of every batch, and may change what the model is given."""

    def put(trainer: Any) -> None:
        plain = trainer.batch_generator

        def batch_generator(dataloader: Any) -> Any:
            for inputs, labels in plain(dataloader):
                yield inputs, change(inputs, labels)

        trainer.batch_generator = batch_generator

    return put


def _shift_labels(_inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    return labels.roll(1, dims=-1)


def _train_everything(inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    following = inputs["input"].roll(-1, dims=-1)
    prompt = (labels == data.IGNORED) & (following != tiny.END)
    return torch.where(prompt, following, labels)


def _train_padding(_inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    ended = (labels == tiny.END).cumsum(dim=-1) > 0
    return torch.where(ended & (labels == data.IGNORED), tiny.END, labels)


def _ignore_seams(inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    inputs["positions"] = torch.arange(labels.shape[-1]).expand_as(labels).contiguous()
    return labels


def _drop_row(_inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    labels[0] = data.IGNORED
    return labels


def _count(change: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    """A fault in the number of tokens by which the loss is divided."""

    def put(trainer: Any) -> None:
        plain = trainer.forward_backward_step

        def forward_backward_step(*, global_valid_tokens: torch.Tensor, labels: torch.Tensor, **known: Any) -> Any:
            count = change(trainer, global_valid_tokens, labels)
            return plain(global_valid_tokens=count, labels=labels, **known)

        trainer.forward_backward_step = forward_backward_step

    return put


def _lose_first_batch(trainer: Any) -> None:
    plain, calls = trainer.forward_backward_step, []

    def forward_backward_step(**known: Any) -> Any:
        loss = plain(**known)
        calls.append(loss)
        if len(calls) == 1:
            for part in trainer.model_parts:
                for parameter in part.parameters():
                    parameter.grad.zero_()
        return loss

    trainer.forward_backward_step = forward_backward_step


def _freeze_weight(trainer: Any) -> None:
    trainer.model_parts[0].layers["1"].feed_forward.w1.weight.requires_grad_(False)


def _skip_steps(trainer: Any) -> None:
    trainer.dataloader.load_state_dict = lambda _state: None


FAULTS: dict[str, Callable[[Any], None]] = {
    "labels-shifted": _in_batches(_shift_labels),
    "prompt-trained": _in_batches(_train_everything),
    "padding-trained": _in_batches(_train_padding),
    "seams-ignored": _in_batches(_ignore_seams),
    "row-dropped": _in_batches(_drop_row),
    "counted-twice": _count(lambda _trainer, count, _labels: count * 2),
    "mean-of-means": _count(
        lambda trainer, _count, labels: (labels != data.IGNORED).sum() * trainer.gradient_accumulation_steps
    ),
    "first-batch-lost": _lose_first_batch,
    "weight-frozen": _freeze_weight,
}
"""Each is put into a trainer that is built and has not trained."""
RESUMED_FAULTS: dict[str, Callable[[Any], None]] = {"steps-skipped": _skip_steps}
"""Each is put into a trainer that will go on from a checkpoint."""
