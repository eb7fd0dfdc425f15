"""Faults that are made on purpose: the comparison with one process must notice each.

``FAULTS`` change a trainee before its first step, ``DAMAGES`` change the files of a checkpoint. No fault leaves a
collective that the others are in; ``LAUNCHER`` has those that do.
"""

from __future__ import annotations

import ctypes
import shutil
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import functional

from parallel_tests.comparisons import GOOD, STALE
from smoke_tests import data

if TYPE_CHECKING:
    from pathlib import Path

    from parallel_tests.world import World


def keep_own_gradient(trainee: Any) -> None:
    """The last rank takes part in the reduction and then keeps its own gradient."""

    def hook(_state, bucket):  # noqa: ANN001, ANN202 - torch reads the annotations, and these are strings
        own = bucket.buffer().clone() / trainee.world.size
        reduced = dist.all_reduce(bucket.buffer().div_(trainee.world.size), async_op=True).get_future()
        keeps = trainee.world.rank == trainee.world.size - 1
        return reduced.then(lambda future: own if keeps else future.value()[0])

    trainee.model.register_comm_hook(None, hook)


def average_twice(trainee: Any) -> None:
    """Gradients are divided by the number of ranks once more after the reduction."""
    whole = trainee.gradients

    def divided() -> dict[str, torch.Tensor]:
        for parameter in trainee.model.parameters():
            parameter.grad /= trainee.world.size
        return whole()

    trainee.gradients = divided


def average_twice_in_hook(trainee: Any) -> None:
    """A communication hook divides by the number of ranks before the reduction, and again after it."""
    size = trainee.world.size

    def hook(_state, bucket):  # noqa: ANN001, ANN202 - torch reads the annotations, and these are strings
        reduced = dist.all_reduce(bucket.buffer().div_(size), async_op=True).get_future()
        return reduced.then(lambda future: future.value()[0].div_(size))

    trainee.model.register_comm_hook(None, hook)


def see_foreign_data(trainee: Any) -> None:
    """The last rank sees the first one's sequences, as without a distributed sampler."""
    if trainee.world.rank == trainee.world.size - 1:
        trainee.seen_rank = 0


def take_own_mean(trainee: Any) -> None:
    """Every rank's loss is the mean over its own tokens, so that the average is a mean of means."""
    trainee.own_mean = True


def skip_reduction(trainee: Any) -> None:
    """The last batch too is under ``no_sync``: nothing is reduced."""
    trainee.accumulating = lambda *, last: type(trainee).accumulating(trainee, last=False)  # noqa: ARG005


def skip_reduction_later(trainee: Any) -> None:
    """From the second step on the last batch too is under ``no_sync``."""
    plain = trainee.step

    def step() -> None:
        plain()
        skip_reduction(trainee)

    trainee.step = step


def raise_rate(trainee: Any) -> None:
    """Every rank's AdamW takes steps that are half as long again."""
    for group in trainee.optimizer.param_groups:
        group["lr"] *= 1.5


def decay_on_one_rank(trainee: Any) -> None:
    """The last rank's AdamW has a weight decay that nobody asked for."""
    if trainee.world.rank == trainee.world.size - 1:
        for group in trainee.optimizer.param_groups:
            group["weight_decay"] = 0.1


def seed_otherwise(trainee: Any) -> None:
    """The last rank's shards are of a model that was made from another seed."""
    if trainee.world.rank == trainee.world.size - 1:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in trainee.plain.parameters():
                local = parameter.to_local()
                local.copy_(local.flatten()[torch.randperm(local.numel(), generator=generator)].view_as(local))


def shrink_loss(trainee: Any) -> None:
    """The loss that is differentiated is divided by the number of ranks, as the average divides the gradients."""
    whole = trainee.model.backward
    trainee.model.backward = lambda loss: whole(loss / trainee.world.size)


def shift_partition(trainee: Any) -> None:
    """One parameter's partition on the last rank begins one number late."""
    if trainee.world.rank == trainee.world.size - 1:
        local = trainee.plain.model.layers[0].self_attn.o_proj.weight.ds_tensor
        with torch.no_grad():
            local.copy_(local.roll(-1, 0))


def forget_reduction(trainee: Any) -> None:
    """The output projection of one layer is not added up over the ranks: each goes on with its own part."""
    projection = trainee.model.model.layers[0].self_attn.o_proj
    projection._forward_hooks.clear()
    projection._forward_pre_hooks.clear()
    weight = projection.weight
    projection.forward = lambda states: functional.linear(
        states.to_local() if hasattr(states, "to_local") else states,
        weight.to_local() if hasattr(weight, "to_local") else weight,
    )


def split_positions(trainee: Any) -> None:
    """Every rank counts the positions of its part from 0."""
    trainee.positions = lambda places: torch.arange(places.shape[1], device=places.device)[None]


def lose_seam(trainee: Any) -> None:
    """Every rank makes the targets from its own part: the last token of each part predicts nothing."""

    def wanted(tokens: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        return torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], data.IGNORED)], 1)

    trainee.wanted = wanted


def keep_own_part(trainee: Any) -> None:
    """The last rank does not take over the sum of the parts' gradients."""
    summed = trainee.reduce

    def reduce() -> None:
        own = [parameter.grad.clone() for parameter in trainee.model.parameters()]
        summed()
        if trainee.world.rank == trainee.world.size - 1:
            for parameter, gradient in zip(trainee.model.parameters(), own):
                parameter.grad.copy_(gradient)

    trainee.reduce = reduce


def shift_shard(trainee: Any) -> None:
    """One parameter's shard on the last rank begins one row late."""
    if trainee.world.rank == trainee.world.size - 1:
        local = trainee.model.model.layers[0].self_attn.o_proj.weight.to_local()
        with torch.no_grad():
            local.copy_(local.roll(-1, 0))


def lose_shard(folder: Path, world: World) -> None:
    """The last rank's file is gone."""
    if world.rank == 0:
        for file in _last_shards(folder / GOOD, world):
            file.unlink()


def save_shard_twice(folder: Path, world: World) -> None:
    """The last rank's file is the first one's."""
    if world.rank == 0:
        for file in _last_shards(folder / GOOD, world):
            shutil.copy(file.with_name("__0_0.distcp"), file)


def keep_stale_shard(folder: Path, world: World) -> None:
    """The last rank's file is that of the checkpoint before, as when its last write did not reach the disk."""
    if world.rank == 0:
        for file in _last_shards(folder / GOOD, world):
            shutil.copy(folder / STALE / file.relative_to(folder / GOOD), file)


def _last_shards(folder: Path, world: World) -> list[Path]:
    """The last rank's files in a checkpoint of torch's or DeepSpeed's."""
    last = world.size - 1
    files = [*folder.rglob(f"__{last}_0.distcp"), *folder.rglob(f"*zero_pp_rank_{last}_mp_rank_00_optim_states.pt")]
    if not files:
        raise LookupError(f"no file of rank {last} is in {sorted(path.name for path in folder.rglob('*'))}")
    return files


FAULTS = {
    ("ddp", "rank-keeps-its-own"): keep_own_gradient,
    ("ddp", "averaged-twice"): average_twice_in_hook,
    ("ddp", "foreign-data"): see_foreign_data,
    ("ddp", "own-mean"): take_own_mean,
    ("ddp", "reduction-skipped"): skip_reduction,
    ("ddp", "reduction-skipped-later"): skip_reduction_later,
    ("ddp", "rate-raised"): raise_rate,
    ("ddp", "one-rank-decays"): decay_on_one_rank,
    ("fsdp2", "averaged-twice"): average_twice,
    ("fsdp2", "foreign-data"): see_foreign_data,
    ("fsdp2", "shard-shifted"): shift_shard,
    ("fsdp2", "rank-seeded-otherwise"): seed_otherwise,
    ("fsdp2", "rate-raised"): raise_rate,
    ("fsdp2", "one-rank-decays"): decay_on_one_rank,
    ("tensor", "reduction-forgotten"): forget_reduction,
    ("tensor", "shard-shifted"): shift_shard,
    ("tensor", "rate-raised"): raise_rate,
    ("context", "positions-split"): split_positions,
    ("context", "seam-lost"): lose_seam,
    ("context", "rank-keeps-its-own"): keep_own_part,
    ("context", "rate-raised"): raise_rate,
    ("zero2", "averaged-twice"): shrink_loss,
    ("zero2", "foreign-data"): see_foreign_data,
    ("zero2", "rate-raised"): raise_rate,
    ("zero3", "foreign-data"): see_foreign_data,
    ("zero3", "shard-shifted"): shift_partition,
    ("zero3", "rate-raised"): raise_rate,
}
DAMAGES = {
    ("fsdp2", "shard-lost"): lose_shard,
    ("fsdp2", "shard-twice"): save_shard_twice,
    ("fsdp2", "stale-shard"): keep_stale_shard,
    ("zero2", "stale-shard"): keep_stale_shard,
    ("zero3", "shard-lost"): lose_shard,
    ("zero3", "stale-shard"): keep_stale_shard,
}


def _leave(world: World, action: Any) -> None:
    if world.rank == world.size - 1:
        action()
    dist.all_reduce(torch.ones(1, device=world.device))


def _crash() -> None:
    ctypes.string_at(0)


def _raise() -> None:
    raise LookupError("raised on purpose")


def _hang() -> None:
    time.sleep(600)


LAUNCHER = {
    "rank-crashes": lambda world: _leave(world, _crash),
    "rank-raises": lambda world: _leave(world, _raise),
    "rank-hangs": lambda world: _leave(world, _hang),
}
