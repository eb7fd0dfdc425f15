"""The record of a step that DeepSpeed's engine takes: inside backward, on gradients in a partition of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smoke_tests.trainers.step_record import TrainingRecord

from smoke_tests import model

if TYPE_CHECKING:
    import torch


class EngineRecord(TrainingRecord):
    """The record of a trainer whose gradients DeepSpeed gives away right before it uses them."""

    has_moments = False

    def __init__(self, trainer: Any, device: torch.device) -> None:
        super().__init__(trainer, device)
        self._held: dict[str, torch.Tensor] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Watch the engine's step too."""
        engine = self.user.deepspeed
        plain = engine.step

        def step(*words: Any, **options: Any) -> Any:
            if engine.is_gradient_accumulation_boundary():
                self._held = _gradients(engine)
            return plain(*words, **options)

        engine.step = step
        super().on_train_begin(args, state, control, **known)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Those that the engine has used: it takes its step inside of backward."""
        return self._held


def _gradients(engine: Any) -> dict[str, torch.Tensor]:
    """Every trained weight's gradient, without the scale of the loss."""
    from deepspeed.utils import safe_get_full_grad

    return {
        model.plain_name(name): safe_get_full_grad(parameter).double().cpu() / engine.optimizer.loss_scale
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
    }
