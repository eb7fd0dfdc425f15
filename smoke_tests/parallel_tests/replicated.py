"""DistributedDataParallel: every rank has the whole model, gradients are averaged."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parallel_tests.trainee import Trainee

if TYPE_CHECKING:
    from pathlib import Path


class Replicated(Trainee):
    """torch's DistributedDataParallel; batches before the last are under its ``no_sync``."""

    def prepare(self, built: Any) -> None:
        self.model = DistributedDataParallel(built, bucket_cap_mb=1)  # several buckets also for a tiny model
        self.optimizer = self.new_optimizer(built.parameters())

    def accumulating(self, *, last: bool) -> Any:
        return contextlib.nullcontext() if last else self.model.no_sync()

    def save(self, folder: Path) -> None:
        if self.world.rank == 0:
            torch.save(
                {"model": self.plain.state_dict(), "optimizer": self.optimizer.state_dict()}, folder / "whole.pt"
            )
        dist.barrier()

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "whole.pt", map_location=self.world.device, weights_only=True)
        self.plain.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
