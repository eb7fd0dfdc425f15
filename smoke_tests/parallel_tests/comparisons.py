"""The comparisons of one way of training with the reference on one process. All ranks run them together.

What is measured comes first and is judged afterwards: a rank that stopped at a wrong number would leave the others
waiting for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from parallel_tests.expected import Expected, distances
from parallel_tests.joining import furthest
from parallel_tests.shared_folder import shared_folder
from smoke_tests import profiling
from smoke_tests.outcomes import Failed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from parallel_tests.trainee import Trainee
    from parallel_tests.world import World
    from smoke_tests.precision import Precision

STEPS = 3
GROWTH = 20.0
"""How much further than the first one the losses of later steps may be off: every step adds to the rounding."""
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
    """Loss and every gradient of the first step, and the losses of the next ones, are those of one process."""
    trainee = make(world, precision, "sgd")
    expected = Expected(world.size, getattr(torch, precision.weights), trainee.rounded)
    if trainee.stand_in is not None:
        report["stand_in"] = trainee.stand_in
    if fault is not None:
        fault(trainee)
    rows = trainee.all_rows(batches)
    losses, drifts = [], []
    for number in range(STEPS):
        if number == 0:
            with profiling.watched(world.device) as names:
                loss = trainee.forward_backward(batches)
            report["kernels"] = profiling.attention_names(names)
        else:
            loss = trainee.forward_backward(batches)
        expected_loss, expected_gradients = expected.loss_and_gradients(rows)
        if number == 0:
            report["errors"] = distances(trainee.gradients(), loss, expected_loss, expected_gradients)
        losses.append(loss)
        drifts.append(abs(loss - expected_loss) / expected_loss)
        trainee.step()
        expected.step(expected_gradients)
    drift = furthest(drifts)
    report["losses"] = losses
    report["figures"] = {"later_losses": drift, "tokens": sum(len(row) - 1 for row in rows)}
    judge_steps(precision, report["errors"], drift)
    if world.device.type == "cuda" and (swap := trainee.kernel_fault(names)):
        raise Failed(f"kernel-swapped: {swap}")


def judge_steps(precision: Precision, errors: dict[str, Any], drift: float) -> None:
    """Raise ``Failed`` unless a first step and the losses after it are within the bounds of their precision."""
    if not (errors["loss"] <= precision.loss and errors["gradient"] <= precision.gradient):
        raise Failed(
            f"the first step's loss is off by {errors['loss']:.1e} ({precision.loss:.0e} is allowed),"
            f" the gradient of {errors['gradient_of']} by {errors['gradient']:.1e} ({precision.gradient:.0e})"
        )
    if not drift <= GROWTH * precision.loss:
        raise Failed(
            f"the first step is right and a later loss is off by {drift:.1e} ({GROWTH * precision.loss:.0e} is"
            " allowed): the optimizer's step is not that of one process"
        )


def compare_checkpoint(
    make: Callable[..., Trainee],
    world: World,
    precision: Precision,
    report: dict[str, Any],
    *,
    damage: Callable[[Path, World], None] | None = None,
) -> None:
    """Training that goes on from a checkpoint has the losses that it has without a stop."""
    with shared_folder(world) as folder:
        first = make(world, precision, "adamw")
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
        onward = _losses(first)
        second = make(world, precision, "adamw")
        second.spoil()
        try:
            second.load(folder / GOOD)
        except BaseException as error:  # torch's CheckpointException is no Exception
            raise Unreadable(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}") from error
        again = _losses(second)
    report["losses"] = [*onward, *again]
    worst = furthest([abs(one - other) / abs(one) for one, other in zip(onward, again)])
    report["figures"] = {"worst_loss": worst}
    if not worst <= SAME:
        raise Failed(
            f"after loading the losses are {_shown(again)} and without a stop they are {_shown(onward)}:"
            f" off by {worst:.1e} ({SAME:.0e} is allowed)"
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
