"""The list of the checks of DeepSpeed under transformers' Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, PLAIN, Fault, fault_checks, trainer_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check
    from smoke_tests.refusals import Refusal

DISTRIBUTION = "deepspeed"
MODULES = {"deepspeed-zero1": "deepspeed_lora", "deepspeed-zero2": "deepspeed_lora"}
REFUSALS: tuple[Refusal, ...] = ()

FAULTS = (
    Fault("labels-shifted", "padded", "lora"),
    Fault("prompt-trained", "padded", "lora"),
    Fault("padding-trained", "padded", "lora"),
    Fault("counted-twice", "padded", "lora"),
    Fault("mean-of-means", "padded", "lora"),
    Fault("first-batch-lost", "padded", "lora"),
    Fault("divided-twice", "padded", "lora"),
    Fault("adapter-frozen", "padded", "lora", "weights-still"),
    Fault("base-trained", "padded", "lora", "others-moved"),
    Fault("steps-skipped", "padded", "resumed-lora", "resumed-elsewhere"),
)


def checks() -> Iterator[Check]:
    """LoRA and full training at ZeRO's stages 1 and 2, and the faults that they must notice."""
    for stage in (1, 2):
        for family in FAMILIES:
            yield from _at_stage(f"deepspeed-zero{stage}/{family}", quick=stage == 2 or family == "qwen3")
    yield from fault_checks("deepspeed-zero2", FAULTS)


def _at_stage(detail: str, *, quick: bool) -> Iterator[Check]:
    for dtype in ("fp32", "fp16-pure"):
        for setting in PLAIN:
            yield trainer_check(detail, dtype, "padded", "lora", setting=setting, quick=quick)
        yield trainer_check(detail, dtype, "padded", "two-groups-lora", quick=quick)
        yield trainer_check(detail, dtype, "padded", "full", quick=quick)
        yield trainer_check(detail, dtype, "padded", "resumed-lora", quick=quick)
