"""Faults that are put into unsloth's path on purpose: every Trainer's, but for what unsloth does in its own way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smoke_tests.trainers import trainer_faults

from smoke_tests import data

if TYPE_CHECKING:
    from collections.abc import Callable

Batch = dict[str, Any]


def _ignore_seams(batch: Batch) -> None:
    """Leave out what tells unsloth's attention, loss and rotary embedding where rows begin."""
    for name in ("packed_seq_lengths", "position_ids", "seq_lengths"):
        batch.pop(name, None)


def _drop_row(batch: Batch) -> None:
    labels = batch["labels"]
    kept = (labels[0] != data.IGNORED).nonzero().flatten()
    labels[0, kept[: len(kept) // 2]] = data.IGNORED


def _count(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A fault in the number of tokens by which a step's loss is divided; unsloth counts them with its batches."""

    def put(trainer: Any) -> None:
        plain = trainer.get_batch_samples

        def get_batch_samples(*words: Any, **known: Any) -> Any:
            batches, number = plain(*words, **known)
            return batches, change(number)

        trainer.get_batch_samples = get_batch_samples

    return put


FAULTS: dict[str, Callable[[Any], None]] = {
    **trainer_faults.FAULTS,
    "seams-ignored": trainer_faults.in_batches(_ignore_seams),
    "row-dropped": trainer_faults.in_batches(_drop_row),
    "counted-twice": _count(lambda number: number * 2),
    "mean-of-means": _count(lambda _number: None),
}
"""Each is put into a trainer that is built and has not trained."""
RESUMED_FAULTS = trainer_faults.RESUMED_FAULTS
"""Each is put into a trainer that will go on from a checkpoint."""
