"""The first optimizer step of torchtitan's trainer, seen by hooks. Names are those of transformers' models."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from smoke_tests import profiling

if TYPE_CHECKING:
    from collections.abc import Callable

Values = dict[str, torch.Tensor]


class TitanRecord:
    """Hooks into a trainer that is built and has not trained; what it holds is complete once a step was taken.

    It has what ``demands`` reads of a ``StepRecord``, and the losses that the trainer logs.
    """

    def __init__(self, trainer: Any, device: torch.device) -> None:
        self.trainer = type(trainer).__name__
        self.weights: Values = {}
        self.gradients: Values = {}
        self.after: Values = {}
        self.samples: list[list[int]] = []
        self.loss = 0.0
        self.kernels: list[str] = []
        self.logged: list[float] = []
        self._user = trainer
        self._device = device
        self._open = contextlib.ExitStack()
        self._names: list[str] = []
        _before(trainer, "train_step", self._begin)
        _before(trainer.optimizers, "step", self._keep_gradients)
        _around(trainer, "forward_backward_step", self._keep_batch)
        _before(trainer.metrics_processor, "log", lambda _step, loss, *_more, **_known: self.logged.append(loss))
        _before(trainer.lr_schedulers, "step", self._keep_weights)

    def _begin(self, *_words: Any) -> None:
        if not self.weights:
            self.weights = _named(self._user)
            self._names = self._open.enter_context(profiling.watched(self._device))

    def _keep_batch(self, plain: Callable[..., Any], **known: Any) -> Any:
        if self.gradients:
            return plain(**known)
        self.samples += known["input_dict"]["input"].tolist()
        loss = plain(**known)
        self.loss += loss.item()
        return loss

    def _keep_gradients(self, *_words: Any) -> None:
        if self.gradients:
            return
        self._open.close()
        self.kernels = self._names
        parameters = [parameter for part in self._user.model_parts for parameter in part.parameters()]
        with torch.no_grad():
            kept = [parameter.detach().clone() for parameter in parameters]
            for parameter in parameters:
                parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
            self.gradients = _named(self._user)  # whatever turns weights into those of transformers turns gradients too
            for parameter, value in zip(parameters, kept):
                parameter.copy_(value)

    def _keep_weights(self, *_words: Any) -> None:
        if not self.after:
            self.after = _named(self._user)

    def moved(self, *, by: float = 0.0) -> set[str]:
        """The names of the weights that the first step changed by more than this part of them."""
        return {
            name
            for name, value in self.after.items()
            if (value - self.weights[name]).norm() > by * self.weights[name].norm()
        }


def _named(trainer: Any) -> Values:
    """The trainer's weights by transformers' names, as torchtitan's own adapter gives them."""
    state = {name: value for part in trainer.model_parts for name, value in part.state_dict().items()}
    adapter = trainer.config.model_spec.state_dict_adapter(trainer.model_config, trainer.config.hf_assets_path)
    return {name: _whole(value).double().cpu().clone() for name, value in adapter.to_hf(state).items()}


def _whole(value: Any) -> torch.Tensor:
    return value.detach().full_tensor() if hasattr(value, "full_tensor") else value.detach()


def _before(owner: Any, name: str, look: Callable[..., None]) -> None:
    def looked(plain: Callable[..., Any], *words: Any, **known: Any) -> Any:
        look(*words, **known)
        return plain(*words, **known)

    _around(owner, name, looked)


def _around(owner: Any, name: str, call: Callable[..., Any]) -> None:
    plain = getattr(owner, name)
    setattr(owner, name, lambda *words, **known: call(plain, *words, **known))
