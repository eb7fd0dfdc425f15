"""The record of a step that DeepSpeed's engine takes: inside backward, on gradients in a partition of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smoke_tests.trainers.step_record import StepRecord

from smoke_tests import model

if TYPE_CHECKING:
    import torch


class EngineRecord(StepRecord):
    """The record of a trainer's first step, whose gradients DeepSpeed gives away right before it uses them."""

    def __init__(self, trainer: Any, device: torch.device) -> None:
        super().__init__(trainer, device)
        self._user = trainer
        self._held: dict[str, torch.Tensor] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Keep the weights as the engine has them, and watch its step."""
        engine = self._user.deepspeed
        plain = engine.step

        def step(*words: Any, **options: Any) -> Any:
            if not self._held:
                self._held = _gradients(engine)
            return plain(*words, **options)

        engine.step = step
        super().on_train_begin(args, state, control, **known)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """The engine has taken its step by now: what it had used is the gradients."""
        if not self.gradients:
            self._open.close()
            self.kernels = self._names
            self.gradients = self._held


def _gradients(engine: Any) -> dict[str, torch.Tensor]:
    """Every trained weight's gradient, without the scale of the loss."""
    from deepspeed.utils import safe_get_full_grad

    return {
        model.plain_name(name): safe_get_full_grad(parameter).double().cpu() / engine.optimizer.loss_scale
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
    }
