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
    """The model on one process, trained with SGD by its own gradients in fp64."""

    def __init__(self, size: int, weights: torch.dtype) -> None:
        self.shape = portions.shape_of(size)
        built = model.build(SETTINGS["sdpa"], self.shape, weights, torch.device("cpu"))
        self.weights = {name: value.detach().double().requires_grad_() for name, value in built.named_parameters()}

    def loss_and_gradients(self, rows: Rows) -> tuple[float, reference.Weights]:
        """The mean loss over all predicted tokens of these sequences, and every gradient."""
        return reference.losses_and_gradients(self.weights, rows, self.shape)

    def step(self, gradients: reference.Weights) -> None:
        """Take these gradients, times the learning rate `RATE`, off the weights."""
        with torch.no_grad():
            for name, gradient in gradients.items():
                self.weights[name] -= RATE * gradient


def distances(
    gradients: dict[str, torch.Tensor], loss: float, expected_loss: float, expected: reference.Weights
) -> dict[str, Any]:
    """How far a loss and whole gradients lie from the expected ones; the gradients of the worst parameters by name."""
    held = {name: SimpleNamespace(grad=gradients.get(name)) for name in expected}
    return reference.distances(held, loss, expected_loss, expected)
