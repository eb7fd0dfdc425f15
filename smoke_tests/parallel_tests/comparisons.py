"""The comparisons of one way of training with the reference on one process. All ranks run them together.

What is measured comes first and is judged afterwards: a rank that stopped at a wrong number would leave the others
waiting for it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from parallel_tests.expected import Expected, distances
from parallel_tests.joining import furthest
from parallel_tests.shared_folder import shared_folder
from parallel_tests.trainee import RATE
from smoke_tests import profiling, training
from smoke_tests.optimizer_reference import Distance, Group, OptimizerReference, Recipe
from smoke_tests.outcomes import Failed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from parallel_tests.trainee import Trainee
    from parallel_tests.world import World
    from smoke_tests.precision import Precision

STEPS = 3
SAME = 1e-6  # how far a loss after loading may be from the loss without
STALE, GOOD = "stale", "good"
"""Subfolders of a checkpoint that is damaged on purpose: one a step older, and the one that is loaded."""


def compare_steps(  # noqa: PLR0913
    make: Callable[..., Trainee],
    world: World,
    precision: Precision,
    report: dict[str, Any],
    *,
    batches: int,
    fault: Callable[[Trainee], None] | None = None,
) -> None:
    """Loss and gradients of each step are those of one process, and AdamW's formula makes the weights of them.

    Weights are the trainee's own, which were held to the formula in the step before, but for the first step's.
    """
    trainee = make(world, precision)
    expected = Expected(world.size, getattr(torch, precision.weights), trainee.rounded)
    if trainee.stand_in is not None:
        report["stand_in"] = trainee.stand_in
    if fault is not None:
        fault(trainee)
    rows = trainee.all_rows(batches)
    optimizer = OptimizerReference(expected.begun, Recipe(lambda _name: Group(RATE)))
    weights, losses, errors, updates = expected.begun, [], [], []
    for number in range(STEPS):
        with profiling.watched(world.device) if number == 0 else contextlib.nullcontext() as names:
            loss = trainee.forward_backward(batches)
        if number == 0:
            report["kernels"] = profiling.attention_names(names)
        gradients = trainee.gradients()
        losses.append(loss)
        errors.append(distances(gradients, loss, *expected.loss_and_gradients(weights, rows)))
        trainee.step()
        weights = trainee.whole_weights()
        optimizer.step(gradients)
        updates.append(worst_update(optimizer, weights))
    report["losses"], report["errors"] = losses, errors[0]
    report["figures"] = {
        "later_losses": furthest([error["loss"] for error in errors[1:]]),
        "later_gradients": furthest([error["gradient"] for error in errors[1:]]),
        "updates": furthest([update.over for update in updates]),
        "tokens": sum(len(row) - 1 for row in rows),
    }
    judge_steps(precision, errors, updates)
    if world.device.type == "cuda" and (swap := trainee.kernel_fault(names)):
        raise Failed(f"kernel-swapped: {swap}")


def worst_update(optimizer: OptimizerReference, weights: dict[str, torch.Tensor]) -> Distance:
    """The weight that is furthest from what the optimizer's formula makes of the gradients, by what is allowed."""
    found = [distance for distance in optimizer.distances(weights, {}, {}) if distance.part == "weight"]
    return max(found, key=lambda distance: distance.over)


def judge_steps(precision: Precision, errors: list[dict[str, Any]], updates: list[Distance]) -> None:
    """Raise ``Failed`` unless every step's loss, gradients and weights are within the bounds of their precision."""
    for number, (error, update) in enumerate(zip(errors, updates), 1):
        if fault := training.wrong(precision, error, number):
            raise Failed(f"{'first' if number == 1 else 'later'}-step-off: {fault}")
        if not update.over <= 1.0:
            raise Failed(
                f"update-off: after step {number} {update.name} is off by {update.error:.1e} ({update.allowed:.0e} is"
                " allowed) from what AdamW's formula makes of the gradients"
            )


def compare_checkpoint(
    make: Callable[..., Trainee],
    world: World,
    precision: Precision,
    report: dict[str, Any],
    *,
    damage: Callable[[Path, World], None] | None = None,
) -> None:
    """Weights that are loaded are those that were saved, bit for bit, and training goes on as without a stop."""
    with shared_folder(world) as folder:
        first = make(world, precision)
        if first.stand_in is not None:
            report["stand_in"] = first.stand_in
        for name in (STALE, GOOD):
            first.forward_backward(1)
            first.step()
            if name == GOOD or damage is not None:
                first.save(_made(folder / name, world))
                dist.barrier()
        if damage is not None:
            damage(folder, world)
            dist.barrier()
        saved = first.whole_weights()
        onward = _losses(first)
        second = make(world, precision)
        second.spoil()
        try:
            second.load(folder / GOOD)
        except BaseException as error:  # torch's CheckpointException is no Exception
            raise Unreadable(f"unreadable: {type(error).__name__}: {str(error).strip().splitlines()[-1]}") from error
        loaded = second.whole_weights()
        again = _losses(second)
    report["losses"] = [*onward, *again]
    changed = [name for name, value in saved.items() if not torch.equal(loaded[name], value)]
    if changed:
        raise Failed(f"loaded-elsewhere: {changed[0]} is not what was saved ({len(changed)} such weights)")
    worst = furthest([abs(one - other) / abs(one) for one, other in zip(onward, again)])
    report["figures"] = {"worst_loss": worst}
    if not worst <= SAME:
        raise Failed(
            f"resumed-elsewhere: after loading the losses are {_shown(again)} and without a stop they are"
            f" {_shown(onward)}: off by {worst:.1e} ({SAME:.0e} is allowed)"
        )


def _made(folder: Path, world: World) -> Path:
    if world.rank == 0:
        folder.mkdir()
    dist.barrier()
    return folder


def _losses(trainee: Trainee) -> list[float]:
    losses = []
    for _ in range(STEPS):
        losses.append(trainee.forward_backward(1))
        trainee.step()
    return losses


def _shown(losses: list[float]) -> str:
    return ", ".join(f"{loss:.6f}" for loss in losses)


class Unreadable(RuntimeError):  # noqa: N818 - an outcome
    """A checkpoint could not be loaded; the text is the library's own."""
