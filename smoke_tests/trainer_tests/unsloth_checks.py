"""The list of unsloth's checks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, Fault, fault_checks, trainer_check

from smoke_tests.catalogue import IMPORTING
from smoke_tests.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

DISTRIBUTION = "unsloth"
MODULES = {"unsloth-sft": "unsloth_sft"}
REFUSALS = (
    Refusal(
        r"NotImplementedError: Unsloth (cannot find any torch accelerator|does not currently work)",
        "refused",
        "unsloth wants a GPU, and says so when it is imported",
    ),
)

FAULTS = (
    Fault("labels-shifted", "padded", "lora"),
    Fault("prompt-trained", "responses", "lora"),
    Fault("padding-trained", "padded", "lora"),
    Fault("row-dropped", "padding-free", "lora"),
    Fault("counted-twice", "padding-free", "lora"),
    Fault("mean-of-means", "padding-free", "lora"),
    Fault("first-batch-lost", "padding-free", "lora"),
    Fault("seams-ignored", "packed", "lora"),
    Fault("adapter-frozen", "padding-free", "lora", "weights-still"),
    Fault("base-trained", "padding-free", "lora", "others-moved"),
    Fault("steps-skipped", "padding-free", "resumed-lora", "resumed-elsewhere"),
)


def checks() -> Iterator[Check]:
    """The checks of its supervised fine-tuning, and the faults that they must notice."""
    for check in _checks():
        yield dataclasses.replace(check, timeout=IMPORTING)


def _checks() -> Iterator[Check]:
    for family in FAMILIES:
        detail, qwen3 = f"unsloth-sft/{family}", family == "qwen3"
        for layout in ("padding-free", "padded", "packed"):
            yield trainer_check(detail, "bf16-pure", layout, "lora", quick=True)
        for layout in ("responses", "completion"):
            yield trainer_check(detail, "bf16-pure", layout, "lora", quick=qwen3)
        yield trainer_check(detail, "bf16", "padding-free", "lora", quick=qwen3)
        yield trainer_check(detail, "bf16-pure", "padding-free", "qlora", quick=qwen3)
        yield trainer_check(detail, "bf16-pure", "packed", "qlora")
        yield trainer_check(detail, "bf16-pure", "padding-free", "uncheckpointed-lora")
        yield trainer_check(detail, "bf16-pure", "padding-free", "resumed-lora", quick=qwen3)
        yield trainer_check(detail, "bf16", "padding-free", "full", quick=qwen3)
        yield trainer_check(detail, "bf16", "packed", "full")
    yield from fault_checks("unsloth-sft", FAULTS, dtype="bf16-pure")
