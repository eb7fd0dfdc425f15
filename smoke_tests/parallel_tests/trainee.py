"""What every way of training over several processes has: batches, the loss over all tokens, whole gradients, a step.

The loss of a batch is the sum over its predicted tokens, divided by the number of tokens that **all** ranks and
accumulated batches of the step predict, as transformers' Trainer does it (``num_items_in_batch``), and multiplied by
the number of ranks where the gradients are averaged over them afterwards.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from parallel_tests import portions
from smoke_tests import data, model, settings
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from parallel_tests.portions import Rows
    from parallel_tests.world import World
    from smoke_tests.layouts import Batch
    from smoke_tests.precision import Precision


RATE = 4e-3


class Trainee:
    """The tiny model on this rank with its part of the data; each rank sees sequences of its own."""

    package: str | None = None
    """The distribution that this way of training needs beside torch and transformers."""
    stand_in: str | None = None
    """What is in the place of kernels that cannot run here."""
    averaged = True
    """Whether gradients are averaged over the ranks, so that a loss is multiplied by their number."""

    def __init__(self, world: World, precision: Precision) -> None:
        self.world, self.precision = world, precision
        self.shape = portions.shape_of(world.size)
        self.weights = getattr(torch, precision.weights)
        self.autocast = getattr(torch, precision.autocast) if precision.autocast else None
        self.rounded: torch.dtype | None = None  # in which the weights are computed with, where they are kept in full
        self.own_mean = False  # a rank's loss is the mean over its own tokens
        self.seen_rank = world.rank  # whose data this rank sees
        self.prepare(model.build(SETTINGS["sdpa"], self.shape, self.weights, world.device).train())

    @property
    def plain(self) -> Any:
        """The model as transformers has it, without what wraps it."""
        return getattr(self.model, "module", self.model)

    def prepare(self, built: Any) -> None:
        """Wrap or divide the model, and make its optimizer."""
        raise NotImplementedError

    def new_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """AdamW, whose steps the reference takes too.

        One parameter at a time: on a GPU torch takes them in groups by default, and refuses a group with whole tensors
        and shards, which is what tensor parallelism leaves.
        """
        return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0, foreach=False)

    def rows(self, batch: int) -> Rows:
        """The sequences that this rank is to see in an accumulated batch."""
        return portions.portion(self.seen_rank, batch)

    def all_rows(self, batches: int) -> Rows:
        """The sequences of the whole step, of all ranks."""
        return portions.everything(self.world.size, batches)

    def forward_backward(self, batches: int) -> float:
        """Run the accumulated batches of one step; returns the loss over all tokens of all ranks."""
        share = 0.0
        for batch in range(batches):
            with self.accumulating(last=batch == batches - 1):
                loss = self.loss(batch, batches)
                share += loss.item()
                self.backward(loss, last=batch == batches - 1)
        return self.joined(share)

    def joined(self, share: float) -> float:
        """The loss of the step, given the sum of what this rank's batches gave."""
        return self.world.total(share) / (self.world.size if self.averaged else 1)

    def accumulating(self, *, last: bool) -> Any:
        """The context in which a batch runs that is not the last of its step."""
        del last
        return contextlib.nullcontext()

    def loss(self, batch: int, batches: int) -> torch.Tensor:
        """The loss of one batch, so normalised that the sum over batches and the joining of ranks give the mean."""
        made = self.lay_out(self.rows(batch))
        with torch.autocast(self.world.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            logits = self.model(**made.inputs).logits
        total = functional.cross_entropy(
            logits.float().flatten(0, 1), made.targets.flatten(), ignore_index=data.IGNORED, reduction="sum"
        )
        if self.own_mean:
            return total / portions.predicted(self.rows(batch)) / batches
        factor = self.world.size if self.averaged else 1
        return total * factor / portions.predicted(self.all_rows(batches))

    def lay_out(self, rows: Rows) -> Batch:
        """These sequences as this rank's model wants them."""
        return portions.padded(rows, self.world, self.autocast or self.weights)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Compute gradients; the reduction comes with the last batch."""
        del last
        loss.backward()

    def gradients(self) -> dict[str, torch.Tensor]:
        """Every parameter's whole gradient after the reduction, by its name, on the CPU. All ranks call it."""
        return {name: whole(value.grad) for name, value in self.plain.named_parameters()}

    def whole_weights(self) -> dict[str, torch.Tensor]:
        """Every parameter, put together, by its name, on the CPU. All ranks call it."""
        return {name: whole(value) for name, value in self.plain.named_parameters()}

    def kernel_fault(self, names: list[str]) -> str | None:
        """Say why the names in a GPU's profile do not prove that attention's own kernels ran, or None if they do."""
        return settings.kernel_fault(SETTINGS["sdpa"], names, on_gpu=True)

    def step(self) -> None:
        """Take the optimizer's step for the gradients at hand."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def spoil(self) -> None:
        """Change every weight, so that a checkpoint that is not read shows."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(0.5)

    def save(self, folder: Path) -> None:
        """Write weights and the optimizer's state. All ranks call it."""
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote. All ranks call it."""
        raise NotImplementedError


def whole(tensor: Any) -> torch.Tensor:
    """A copy of a tensor on the CPU, put together where it is divided, which all ranks call."""
    held = tensor.detach()
    return (held.full_tensor() if hasattr(held, "full_tensor") else held).cpu().clone()
