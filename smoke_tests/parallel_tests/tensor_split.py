"""transformers' tensor parallelism: every weight matrix is divided among the ranks, which all see the same batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from parallel_tests import portions
from parallel_tests.saved_shards import load_shards, save_shards
from parallel_tests.shared_folder import shared_folder
from parallel_tests.trainee import Trainee
from smoke_tests.model import _dtype_argument
from smoke_tests.outcomes import NotRun

if TYPE_CHECKING:
    from pathlib import Path

    from parallel_tests.portions import Rows


class TensorSplit(Trainee):
    """``from_pretrained(..., tp_plan="auto")``; checkpoints by ``save_pretrained``, optimizer states by torch's."""

    averaged = False

    def prepare(self, built: Any) -> None:
        if not getattr(built, "supports_tp_plan", True) or not hasattr(built, "_tp_plan"):
            raise NotRun("this transformers has no plan of tensor parallelism for Qwen2")
        with shared_folder(self.world) as folder:
            if self.world.rank == 0:
                built.save_pretrained(folder)
            dist.barrier()
            self.read_model(folder)

    def read_model(self, folder: Path) -> None:
        """Load the model, divided, and make its optimizer."""
        import transformers

        named = {_dtype_argument(): self.weights, "attn_implementation": "sdpa", "tp_plan": "auto"}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, **named).train()
        self.optimizer = self.new_optimizer(self.model.parameters())

    def rows(self, batch: int) -> Rows:
        return [row for rank in self.world.ranks() for row in portions.portion(rank, batch)]

    def joined(self, share: float) -> float:
        """Every rank computes the whole loss; they must be the same, which a mean over them keeps visible."""
        return self.world.total(share) / self.world.size

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder / "model")
        save_shards(folder / "optimizer", self.model, self.optimizer)

    def load(self, folder: Path) -> None:
        self.read_model(folder / "model")
        load_shards(folder / "optimizer", self.model, self.optimizer)
