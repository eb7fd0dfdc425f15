"""torch's context parallelism: every rank has a part of each sequence, and attention exchanges keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import functional

from parallel_tests import portions, ring_stand_in
from parallel_tests.saved_shards import load_shards, save_shards
from parallel_tests.trainee import Trainee
from smoke_tests import data
from smoke_tests.outcomes import NotRun

if TYPE_CHECKING:
    from pathlib import Path

    from parallel_tests.portions import Rows


PART = 64
"""Tokens of each rank: two balanced parts of 32, the number to which the fused kernel of fp32 pads its sums."""


class SequenceSplit(Trainee):
    """``context_parallel`` around forward and backward; the gradients of the parts are added up over the ranks.

    Tokens, positions and targets are cut in the same way. The targets are made from the whole sequence, before it is
    cut, or the last token of each part would have none.
    """

    averaged = False

    def prepare(self, built: Any) -> None:
        try:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor.experimental import context_parallel
        except ImportError as error:
            raise NotRun(f"torch {torch.__version__} has no context parallelism: {error}") from None
        if self.world.device.type == "cpu":
            self.stand_in = ring_stand_in.install()
        elif self.autocast is None and self.weights == torch.float32:
            self.stand_in = repeat_shared_heads()
        self.context_parallel = context_parallel
        self.mesh = init_device_mesh(self.world.device.type, (self.world.size,))
        for layer in built.model.layers:
            layer.self_attn.register_forward_pre_hook(drop_mask, with_kwargs=True)
        self.model = built
        self.optimizer = self.new_optimizer(built.parameters())

    def rows(self, batch: int) -> Rows:
        return [data.sequence(5 + batch, PART * self.world.size)]

    def all_rows(self, batches: int) -> Rows:
        return [row for batch in range(batches) for row in self.rows(batch)]

    def forward_backward(self, batches: int) -> float:
        share = 0.0
        total = portions.predicted(self.all_rows(batches))
        for batch in range(batches):
            (row,) = self.rows(batch)
            tokens, places, targets = (
                torch.tensor([values], device=self.world.device)
                for values in (row, list(range(len(row))), data.targets(row))
            )
            with self.divided([tokens, places, targets]):
                with torch.autocast(self.world.device.type, dtype=self.autocast, enabled=self.autocast is not None):
                    logits = self.model(input_ids=tokens, position_ids=self.positions(places)).logits
                loss = functional.cross_entropy(
                    logits.float().flatten(0, 1),
                    self.wanted(tokens, targets).flatten(),
                    ignore_index=data.IGNORED,
                    reduction="sum",
                )
                loss = loss / total
                loss.backward()
                share += loss.item()
        self.reduce()
        return self.world.total(share)

    def divided(self, buffers: list[torch.Tensor]) -> Any:
        """The context in which tensors of (1, length) hold this rank's part of them, and attention goes around."""
        return self.context_parallel(
            self.mesh, buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers=set()
        )

    def positions(self, places: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the positions in the whole sequence."""
        return places

    def wanted(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the targets of the whole sequence."""
        del tokens
        return targets

    def reduce(self) -> None:
        """Add up the gradients of all ranks' parts."""
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)

    def save(self, folder: Path) -> None:
        save_shards(folder, self.model, self.optimizer)

    def load(self, folder: Path) -> None:
        load_shards(folder, self.model, self.optimizer)


def repeat_shared_heads() -> str | None:
    """Have transformers repeat keys and values that several heads share, and return what the report says about it.

    In fp32 torch has only the plain kernel for shared heads, and its ring, which takes fused kernels, ends at the
    causal mask of the plain one: "aten.add.Tensor got mixed torch.Tensor and DTensor". In bf16 they work.
    """
    from transformers.integrations import sdpa_attention

    if not hasattr(sdpa_attention, "use_gqa_in_sdpa"):  # this release always repeats them
        return None
    sdpa_attention.use_gqa_in_sdpa = lambda *_args: False
    return "keys and values repeated for every head: in fp32 torch's ring has no kernel for heads that share them"


def drop_mask(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Take away the mask that transformers makes, as accelerate does: the ring's own causality is what counts.

    transformers takes positions that jump, as those of a balanced part do, for sequences that are packed, and makes a
    mask for the part's own tokens; on some ranks only, since the positions of others do not jump.
    """
    return args, {**kwargs, "attention_mask": None}
