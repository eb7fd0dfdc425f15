"""What a trainer does in its first optimizer step, seen by hooks: weights before, rows, losses, gradients, kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from smoke_tests import model, profiling


class StepRecord(transformers.TrainerCallback):
    """Hooks into a trainer of transformers' kind; what it holds is complete once a step was taken."""

    def __init__(self, trainer: Any, device: torch.device) -> None:
        self.device = device
        self.trainer = type(trainer).__name__
        self.weights: dict[str, torch.Tensor] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self.after: dict[str, torch.Tensor] = {}
        self.batches: list[dict[str, Any]] = []
        self.loss = 0.0
        self.kernels: list[str] = []
        self._open = contextlib.ExitStack()
        self._names: list[str] = []
        self._wrap_training_step(trainer)
        trainer.add_callback(self)

    def _wrap_training_step(self, trainer: Any) -> None:
        plain = trainer.training_step

        def training_step(built: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> torch.Tensor:
            if not self.gradients:
                known = inputs if isinstance(inputs, Mapping) else {}  # GRPO has prompts, and makes its batch of them
                self.batches.append({name: _kept(value) for name, value in known.items()})
            loss = plain(built, inputs, *args, **options)
            if not self.gradients:
                self.loss += loss.item()
            return loss

        trainer.training_step = training_step

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Keep the weights, and let the profiler watch."""
        self.weights = _parameters(known["model"])
        self._names = self._open.enter_context(profiling.watched(self.device))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Keep the gradients that the optimizer is about to use."""
        if self.gradients:
            return
        self._open.close()
        self.kernels = self._names
        self.gradients = {
            model.plain_name(name): parameter.grad.detach().double().cpu().clone()
            for name, parameter in known["model"].named_parameters()
            if parameter.grad is not None
        }

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Keep what the first step made of the weights."""
        if not self.after:
            self.after = _parameters(known["model"])

    def moved(self, *, by: float = 0.0) -> set[str]:
        """The names of the weights that the first step changed by more than this part of them."""
        return {
            name
            for name, value in self.after.items()
            if (value.double() - self.weights[name].double()).norm() > by * self.weights[name].double().norm()
        }


def _parameters(built: Any) -> dict[str, torch.Tensor]:
    return {model.plain_name(name): _plain(value).cpu().clone() for name, value in built.named_parameters()}


def _plain(parameter: Any) -> torch.Tensor:
    """A parameter's values; those of one in four bits as bitsandbytes reads them."""
    if getattr(parameter, "quant_state", None) is None:
        return parameter.detach()
    from bitsandbytes import functional

    return functional.dequantize_4bit(parameter.data, parameter.quant_state)


def _kept(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
