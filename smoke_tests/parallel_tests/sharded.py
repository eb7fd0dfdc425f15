"""FSDP2 (``fully_shard``): parameters, gradients and optimizer states are divided among the ranks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from parallel_tests.saved_shards import load_shards, save_shards
from parallel_tests.trainee import Trainee
from smoke_tests.outcomes import NotRun

if TYPE_CHECKING:
    from pathlib import Path


class Sharded(Trainee):
    """torch's ``fully_shard``, on every layer and on the whole; checkpoints by ``torch.distributed.checkpoint``."""

    def prepare(self, built: Any) -> None:
        try:
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        except ImportError as error:
            raise NotRun(f"torch {torch.__version__} has no fully_shard: {error}") from None
        policy = MixedPrecisionPolicy()
        if self.autocast is not None:  # computes in the low precision instead of autocast, reduces in fp32
            policy = MixedPrecisionPolicy(param_dtype=self.autocast, reduce_dtype=torch.float32)
            self.autocast = None
        for layer in built.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(built, mp_policy=policy)
        self.model = built
        self.optimizer = self.new_optimizer(built.parameters())

    def accumulating(self, *, last: bool) -> Any:
        self.model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def save(self, folder: Path) -> None:
        save_shards(folder, self.model, self.optimizer)

    def load(self, folder: Path) -> None:
        load_shards(folder, self.model, self.optimizer)
