"""What one process in fp64 gives: the loss and gradients of all sequences of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from parallel_tests import portions
from smoke_tests import model, reference
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from parallel_tests.portions import Rows


class Expected:
    """The model on one process in fp64.

    With ``rounded`` the weights are those of a program that keeps them in full and computes with them in this dtype, as
    DeepSpeed does in bf16: they begin as numbers of this dtype, so what a first step changes by less than half of its
    last place shows in later losses only. The reference would otherwise call that a step that is too short.
    """

    def __init__(self, size: int, weights: torch.dtype, rounded: torch.dtype | None = None) -> None:
        self.shape = portions.shape_of(size)
        self.rounded = rounded
        built = model.build(SETTINGS["sdpa"], self.shape, weights, torch.device("cpu"))
        self.begun = {name: self._round(value.detach()) for name, value in built.named_parameters()}
        """The weights before the first step."""

    def loss_and_gradients(self, weights: reference.Weights, rows: Rows) -> tuple[float, reference.Weights]:
        """The mean loss over all predicted tokens of these sequences under these weights, and every gradient."""
        leaves = {name: self._round(value).double().requires_grad_() for name, value in weights.items()}
        return reference.losses_and_gradients(leaves, rows, self.shape)

    def _round(self, value: torch.Tensor) -> torch.Tensor:
        return value if self.rounded is None else value.to(self.rounded).to(value.dtype)


def distances(
    gradients: dict[str, torch.Tensor], loss: float, expected_loss: float, expected: reference.Weights
) -> dict[str, Any]:
    """How far a loss and whole gradients lie from the expected ones; the gradients of the worst parameters by name.

    It says nothing by the kind of weight, whose bounds are measured for one process.
    """
    held = {name: SimpleNamespace(grad=gradients.get(name)) for name in expected}
    found = reference.distances(held, loss, expected_loss, expected)
    del found["shares"]
    return found
