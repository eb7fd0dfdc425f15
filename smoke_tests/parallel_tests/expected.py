"""What one process in fp64 gives: losses and gradients of all sequences, and those after steps of plain SGD."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from parallel_tests import portions
from smoke_tests import model, reference
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from parallel_tests.portions import Rows

RATE = 0.05


class Expected:
    """The model on one process, trained with SGD by its own gradients in fp64.

    With ``rounded`` the weights are those of a program that keeps them in full and computes with them in this dtype, as
    DeepSpeed does in bf16: they begin as numbers of this dtype, so what a first step changes by less than half of its
    last place shows in later losses only. The reference would otherwise call that a step that is too short.
    """

    def __init__(self, size: int, weights: torch.dtype, rounded: torch.dtype | None = None) -> None:
        self.shape = portions.shape_of(size)
        self.rounded = rounded
        built = model.build(SETTINGS["sdpa"], self.shape, weights, torch.device("cpu"))
        self.kept = {name: self._round(value.detach()).double() for name, value in built.named_parameters()}
        self.weights = self._weights()

    def loss_and_gradients(self, rows: Rows) -> tuple[float, reference.Weights]:
        """The mean loss over all predicted tokens of these sequences, and every gradient."""
        return reference.losses_and_gradients(self.weights, rows, self.shape)

    def step(self, gradients: reference.Weights) -> None:
        """Take these gradients, times the learning rate `RATE`, off the weights."""
        for name, gradient in gradients.items():
            self.kept[name] -= RATE * gradient
        self.weights = self._weights()

    def _round(self, value: torch.Tensor) -> torch.Tensor:
        return value if self.rounded is None else value.to(self.rounded)

    def _weights(self) -> reference.Weights:
        return {name: self._round(value).double().clone().requires_grad_() for name, value in self.kept.items()}


def distances(
    gradients: dict[str, torch.Tensor], loss: float, expected_loss: float, expected: reference.Weights
) -> dict[str, Any]:
    """How far a loss and whole gradients lie from the expected ones; the gradients of the worst parameters by name."""
    held = {name: SimpleNamespace(grad=gradients.get(name)) for name in expected}
    return reference.distances(held, loss, expected_loss, expected)
