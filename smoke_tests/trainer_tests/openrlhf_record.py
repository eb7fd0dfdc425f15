"""The record of a step that OpenRLHF takes: DeepSpeed's engine in an Actor, and no callbacks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from smoke_tests.trainers import tiny
from smoke_tests.trainers.step_record import StepRecord

from smoke_tests import model, profiling

if TYPE_CHECKING:
    import torch


class ActorRecord(StepRecord):
    """What an Actor's first step had: its weights, the rows, the loss, the gradients that were used, the kernels.

    ``loss`` is what DeepSpeed makes of the losses of the accumulated batches, whose mean it takes.
    """

    def __init__(self, actor: Any, trainer: str, device: torch.device) -> None:  # no hooks of transformers' Trainer
        self.device = device
        self.trainer = trainer
        self.weights: dict[str, torch.Tensor] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self.after: dict[str, torch.Tensor] = {}
        self.batches: list[dict[str, Any]] = []
        self.loss = 0.0
        self.kernels: list[str] = []
        self._open = contextlib.ExitStack()
        self._engine = actor.model
        self._watch_rows(actor)
        self._watch_backward()
        self._watch_step()

    def begin(self) -> None:
        """Keep the weights, and let the profiler watch; the first step ends it."""
        self.weights = _parameters(self._engine)
        self._names = self._open.enter_context(profiling.watched(self.device))

    def _watch_rows(self, actor: Any) -> None:
        """Keep the tokens that a batch's mask leaves, each row moved to the left."""

        def keep(_actor: Any, words: tuple[Any, ...], options: dict[str, Any]) -> None:
            if self.gradients or not self.weights or not actor.training:
                return
            mask = options["attention_mask"].bool().cpu()
            lines = [row[kept].tolist() for row, kept in zip(words[0].cpu(), mask)]
            longest = max(map(len, lines))
            padded = [line + [tiny.PAD] * (longest - len(line)) for line in lines]
            self.batches.append({"input_ids": mask.new_tensor(padded, dtype=words[0].dtype)})

        actor.register_forward_pre_hook(keep, with_kwargs=True)

    def _watch_backward(self) -> None:
        plain = self._engine.backward

        def backward(loss: torch.Tensor, *words: Any, **options: Any) -> Any:
            if not self.gradients:
                self.loss += loss.item() / self._engine.gradient_accumulation_steps()
            return plain(loss, *words, **options)

        self._engine.backward = backward

    def _watch_step(self) -> None:
        plain = self._engine.step

        def step(*words: Any, **options: Any) -> Any:
            first = not self.gradients and self._engine.is_gradient_accumulation_boundary()
            if first:
                self._open.close()
                self.kernels = self._names
                self.gradients = _gradients(self._engine)
            done = plain(*words, **options)
            if first:
                self.after = _parameters(self._engine)
            return done

        self._engine.step = step


def _parameters(engine: Any) -> dict[str, torch.Tensor]:
    return {model.plain_name(name): value.detach().cpu().clone() for name, value in engine.module.named_parameters()}


def _gradients(engine: Any) -> dict[str, torch.Tensor]:
    """Every trained weight's gradient, from the partition that the engine puts it into."""
    from deepspeed.utils import safe_get_full_grad

    return {
        model.plain_name(name): safe_get_full_grad(parameter).double().cpu()
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
    }
