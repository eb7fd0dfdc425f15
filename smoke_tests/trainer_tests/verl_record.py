"""The first step of verl's engine, seen by hooks: weights, rows, loss, the gradients that were used, kernels."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from smoke_tests.trainers import tiny
from smoke_tests.trainers.step_record import StepRecord

from smoke_tests import model, profiling

Values = dict[str, torch.Tensor]


class EngineRecord(StepRecord):
    """What an engine's first step had; it hooks into one that is built and has not trained.

    ``loss`` is the sum over its micro-batches, each of which is a share of the whole batch's tokens.
    """

    def __init__(self, engine: Any, trainer: str, device: torch.device) -> None:  # no hooks of transformers' Trainer
        self.device = device
        self.trainer = trainer
        self.weights: Values = _values(engine.module)
        self.gradients: Values = {}
        self.after: Values = {}
        self.batches: list[dict[str, Any]] = []
        self.loss = 0.0
        self.kernels: list[str] = []
        self._open = contextlib.ExitStack()
        self._engine = engine
        self._watch_batches()
        engine.optimizer.register_step_pre_hook(self._keep_gradients)
        engine.optimizer.register_step_post_hook(self._keep_weights)
        self._names = self._open.enter_context(profiling.watched(device))

    def _watch_batches(self) -> None:
        plain = self._engine.forward_step

        def forward_step(micro_batch: Any, *words: Any, **known: Any) -> Any:
            loss, output = plain(micro_batch, *words, **known)
            if not self.gradients:
                self.loss += loss.item()
                rows = [row.tolist() for row in micro_batch["input_ids"].unbind()]
                longest = max(map(len, rows))
                padded = [row + [tiny.PAD] * (longest - len(row)) for row in rows]
                self.batches.append({"input_ids": torch.tensor(padded)})
            return loss, output

        self._engine.forward_step = forward_step

    def _keep_gradients(self, *_words: Any) -> None:
        if self.gradients:
            return
        self._open.close()
        self.kernels = self._names
        self.gradients = _gradients(self._engine.module)

    def _keep_weights(self, *_words: Any) -> None:
        if not self.after:
            self.after = _values(self._engine.module)


def _values(module: Any) -> Values:
    """The weights by transformers' names, as FSDP's own state has them."""
    return {model.plain_name(name): _whole(value).cpu().clone() for name, value in module.state_dict().items()}


def _whole(value: Any) -> torch.Tensor:
    return value.detach().full_tensor() if hasattr(value, "full_tensor") else value.detach()


@torch.no_grad()
def _gradients(module: Any) -> Values:
    """Every trained weight's gradient. FSDP may hold many weights in one: what names weights, names gradients too."""
    parameters = list(module.parameters())
    kept = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.fill_(torch.nan)
        else:
            parameter.copy_(parameter.grad)
    gradients = {name: value.double() for name, value in _values(module).items() if not value.isnan().all()}
    for parameter, value in zip(parameters, kept):
        parameter.copy_(value)
    return gradients
