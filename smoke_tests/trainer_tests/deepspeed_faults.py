"""Faults that are put into DeepSpeed's path on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smoke_tests.trainers import trainer_faults

if TYPE_CHECKING:
    from collections.abc import Callable


def _lose_first_batch(trainer: Any) -> None:
    """The engine has put the batch's gradients away when backward ends, so that the fault is before it."""
    plain, calls = trainer.compute_loss, []

    def compute_loss(*words: Any, **options: Any) -> Any:
        loss = plain(*words, **options)
        calls.append(loss)
        return loss * 0.0 if len(calls) == 1 else loss

    trainer.compute_loss = compute_loss


def _divide_twice(trainer: Any) -> None:
    """The engine divides by the number of accumulated batches too, unless it is told that this was done."""
    plain = trainer.accelerator.backward
    trainer.accelerator.backward = lambda loss, **_options: plain(loss)


FAULTS: dict[str, Callable[[Any], None]] = {
    **trainer_faults.FAULTS,
    "first-batch-lost": _lose_first_batch,
    "divided-twice": _divide_twice,
}
RESUMED_FAULTS = trainer_faults.RESUMED_FAULTS
