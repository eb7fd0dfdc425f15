"""The list of ms-swift's checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, FUSED, LATER_FAULTS, PLAIN, Fault, fault_checks, trainer_check

from smoke_tests.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

DISTRIBUTION = "ms-swift"
MODULES = {"ms-swift-sft": "ms_swift_sft"}
REFUSALS = (
    Refusal(
        r'ValueError: The "(packing|padding_free)" feature requires a flash attention implementation',
        "refused",
        "ms-swift packs with flash-attn only",
    ),
)

FAULTS = (
    Fault("labels-shifted", "padded", "full"),
    Fault("prompt-trained", "padded", "full"),
    Fault("padding-trained", "padded", "full"),
    Fault("counted-twice", "padded", "full"),
    Fault("mean-of-means", "padded", "full"),
    Fault("first-batch-lost", "padded", "full"),
    Fault("adapter-frozen", "padded", "lora", "weights-still"),
    Fault("base-trained", "padded", "lora", "others-moved"),
    Fault("steps-skipped", "padded", "resumed", "resumed-elsewhere"),
    *LATER_FAULTS,
)
PACKED_FAULTS = (
    Fault("seams-ignored", "packed", "full"),
    Fault("row-dropped", "packed", "full"),
)


def checks() -> Iterator[Check]:
    """The checks of its supervised fine-tuning, and the faults that they must notice."""
    for family in FAMILIES:
        detail, qwen3 = f"ms-swift-sft/{family}", family == "qwen3"
        for setting in (*PLAIN, *FUSED):
            dtype = "bf16" if setting in FUSED else "fp32"
            yield trainer_check(detail, dtype, "padded", "full", setting=setting, quick=setting == "sdpa" or qwen3)
        for setting in FUSED:
            for layout in ("packed", "padding-free"):
                yield trainer_check(detail, "bf16", layout, "full", setting=setting, quick=qwen3)
        yield trainer_check(detail, "fp32", "packed", "full", quick=qwen3)
        yield trainer_check(detail, "fp32", "whole", "full", quick=qwen3)
        yield trainer_check(detail, "bf16", "padded", "full", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "lora", quick=True)
        yield trainer_check(detail, "bf16", "padded", "qlora", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "uncheckpointed")
        yield trainer_check(detail, "fp32", "padded", "scheduled", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "resumed", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "resumed-lora")
        yield trainer_check(detail, "fp32", "padded", "command")
    yield from fault_checks("ms-swift-sft", FAULTS)
    yield from fault_checks("ms-swift-sft", PACKED_FAULTS, dtype="bf16", setting="fa4")
