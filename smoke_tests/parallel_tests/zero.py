"""DeepSpeed's ZeRO: stage 2 divides gradients and optimizer states among the ranks, stage 3 the parameters too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from parallel_tests.trainee import Trainee

if TYPE_CHECKING:
    from pathlib import Path


class Zero(Trainee):
    """DeepSpeed's engine; where a step ends it is told by accelerate's way, ``set_gradient_accumulation_boundary``."""

    package = "deepspeed"
    stage = 2

    def prepare(self, built: Any) -> None:
        if self.world.device.type == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed

        # An extension in C++ for inference, which it would compile for minutes; it has a way without it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": self.stage, "stage3_param_persistence_threshold": 0},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "gradient_clipping": 0.0,  # without it DeepSpeed 0.19.8 clips to a norm of 1.0
        }
        if self.autocast is not None:
            settings[self.precision.name] = {"enabled": True}
            self.rounded, self.autocast = self.autocast, None
        optimizer = self.new_optimizer(built.parameters())
        self.model, self.optimizer, _, _ = deepspeed.initialize(model=built, optimizer=optimizer, config=settings)

    def accumulating(self, *, last: bool) -> Any:
        self.model.set_gradient_accumulation_boundary(last)
        return super().accumulating(last=last)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        del last
        self.model.backward(loss)

    def gradients(self) -> dict[str, torch.Tensor]:
        from deepspeed.utils import safe_get_full_grad

        return {name: safe_get_full_grad(value).clone().cpu() for name, value in self.plain.named_parameters()}

    def whole_weights(self) -> dict[str, torch.Tensor]:
        from deepspeed.utils import safe_get_full_fp32_param

        return {name: safe_get_full_fp32_param(value).clone().cpu() for name, value in self.plain.named_parameters()}

    def step(self) -> None:
        self.model.step()

    def spoil(self) -> None:
        """Nothing: ZeRO holds the weights that count in its optimizer. The fresh ones differ from the trained."""

    def save(self, folder: Path) -> None:
        self.model.save_checkpoint(str(folder), tag="step")

    def load(self, folder: Path) -> None:
        where, _ = self.model.load_checkpoint(str(folder), tag="step")
        if where is None:
            raise OSError("DeepSpeed's load_checkpoint returned no path: it loaded nothing")


class Zero3(Zero):
    """DeepSpeed's ZeRO at stage 3: weights, gradients and the optimizer's state are all spread over the ranks."""

    stage = 3
