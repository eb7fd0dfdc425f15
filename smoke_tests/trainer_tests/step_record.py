"""What a trainer does in its optimizer steps, seen by hooks: weights, rows, losses, gradients, moments, kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from smoke_tests import model, profiling

Weights = dict[str, torch.Tensor]


class StepRecord:
    """One optimizer step: what it began with, what it was given, and what it left."""

    def __init__(self, trainer: str, device: torch.device, number: int = 0) -> None:
        self.trainer, self.device, self.number = trainer, device, number
        self.weights: Weights = {}
        self.gradients: Weights = {}
        """Those of the whole step, before they are clipped."""
        self.after: Weights = {}
        self.first: Weights = {}
        self.second: Weights = {}
        """The optimizer's moments after the step; empty where it has none that can be read by name."""
        self.batches: list[dict[str, Any]] = []
        self.loss = 0.0
        self.kernels: list[str] = []
        """Those of the first step of a training alone."""

    def moved(self, *, by: float = 0.0) -> set[str]:
        """The names of the weights that the step changed by more than this part of them."""
        return {
            name
            for name, value in self.after.items()
            if (value.double() - self.weights[name].double()).norm() > by * self.weights[name].double().norm()
        }


class TrainingRecord(transformers.TrainerCallback):
    """Hooks into a trainer of transformers' kind: ``steps`` has a record of each step that was taken."""

    has_moments = True
    """Whether the optimizer's moments can be read by the names of weights."""

    def __init__(self, trainer: Any, device: torch.device) -> None:
        self.user, self.device = trainer, device
        self.steps: list[StepRecord] = []
        self._open = contextlib.ExitStack()
        self._kernels: list[str] = []
        self._wrap_training_step(trainer)
        trainer.add_callback(self)

    def _wrap_training_step(self, trainer: Any) -> None:
        plain = trainer.training_step

        def training_step(built: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> torch.Tensor:
            step = self._step()
            known = inputs if isinstance(inputs, Mapping) else {}  # GRPO has prompts, and makes its batch of them
            step.batches.append({name: _kept(value) for name, value in known.items()})
            loss = plain(built, inputs, *args, **options)
            step.loss += loss.item()
            if trainer.accelerator.sync_gradients:
                self._close_profile(step)
                step.gradients = self.gradients()
            return loss

        trainer.training_step = training_step

    def _step(self) -> StepRecord:
        """The step that is under way; it begins with its first batch."""
        if not self.steps or self.steps[-1].after:
            self.steps.append(StepRecord(type(self.user).__name__, self.device, len(self.steps)))
            self.steps[-1].weights = _parameters(self.user.model)
        return self.steps[-1]

    def _close_profile(self, step: StepRecord) -> None:
        if step is self.steps[0]:
            self._open.close()
            step.kernels = self._kernels

    def gradients(self) -> Weights:
        """Every gradient that the model has now."""
        return {
            model.plain_name(name): parameter.grad.detach().double().cpu()
            for name, parameter in self.user.model.named_parameters()
            if parameter.grad is not None
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Let the profiler watch the first step."""
        self._kernels = self._open.enter_context(profiling.watched(self.device))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Keep what the step made of the weights, and the optimizer's moments."""
        step = self._step()
        step.after = _parameters(self.user.model)
        states = getattr(self.user.optimizer, "state", {})
        for name, parameter in self.user.model.named_parameters():
            moments = states.get(parameter, {})
            if "exp_avg" in moments:
                step.first[model.plain_name(name)] = moments["exp_avg"].detach().cpu().clone()
                step.second[model.plain_name(name)] = moments["exp_avg_sq"].detach().cpu().clone()


def _parameters(built: Any) -> Weights:
    return {model.plain_name(name): _plain(value).cpu().clone() for name, value in built.named_parameters()}


def _plain(parameter: Any) -> torch.Tensor:
    """A parameter's values; those of one in four bits as bitsandbytes reads them."""
    if getattr(parameter, "quant_state", None) is None:
        return parameter.detach()
    from bitsandbytes import functional

    return functional.dequantize_4bit(parameter.data, parameter.quant_state)


def _kept(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
