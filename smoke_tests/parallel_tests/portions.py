"""Which process trains on which sequences, and the sizes of a model that can be divided among them.

Every rank and every accumulated batch has other sequences, and another number of tokens: a mean of means is not the
mean over all tokens then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoke_tests import data, layouts, model

if TYPE_CHECKING:
    import torch

    from parallel_tests.world import World

Rows = list[list[int]]


def shape_of(size: int) -> model.Shape:
    """The tiny model, with as many heads as can be divided among that many processes."""
    kv_heads = max(model.TINY.kv_heads, size)
    heads = 2 * kv_heads
    return model.Shape(hidden=heads * model.TINY.head_dim, heads=heads, kv_heads=kv_heads)


def portion(rank: int, batch: int) -> Rows:
    """The sequences of one accumulated batch of one rank: one or two, of lengths that no other batch has."""
    numbers = range(4 * rank + 2 * batch, 4 * rank + 2 * batch + 1 + (rank + batch) % 2)
    return [data.sequence(number, 40 + 37 * number % 89) for number in numbers]


def predicted(rows: Rows) -> int:
    """How many tokens are predicted in these sequences: all but the first of each."""
    return sum(len(row) - 1 for row in rows)


def everything(size: int, batches: int) -> Rows:
    """The sequences of all ranks and batches."""
    return [row for rank in range(size) for batch in range(batches) for row in portion(rank, batch)]


def padded(rows: Rows, world: World, mask_dtype: torch.dtype) -> layouts.Batch:
    """These sequences as a batch that is padded on the right, on this rank's device."""
    made = layouts._padded("right-padded" if len(rows) > 1 else "dense", rows, mask_dtype)
    made.inputs = {name: value.to(world.device) for name, value in made.inputs.items()}
    made.targets = made.targets.to(world.device)
    return made
