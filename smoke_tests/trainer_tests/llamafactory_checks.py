"""The list of LLaMA-Factory's checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, LATER_FAULTS, Fault, fault_checks, trainer_check

from smoke_tests.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

DISTRIBUTION = "llamafactory"
MODULES = {"llamafactory-sft": "llamafactory_sft"}
REFUSALS = (
    Refusal(
        r"PackageNotFoundError: .*'bitsandbytes\S*' distribution was not found",
        "not-run",
        "bitsandbytes is not installed",
    ),
)
SETTINGS = ("eager", "sdpa", "fa2")
"""Those that its setting ``flash_attn`` can ask for; ``fa3`` is in its list and raises "Unknown attention type"."""

FAULTS = (
    Fault("labels-shifted", "padded", "full"),
    Fault("prompt-trained", "padded", "full"),
    Fault("padding-trained", "padded", "full"),
    Fault("counted-twice", "padded", "full"),
    Fault("mean-of-means", "padded", "full"),
    Fault("first-batch-lost", "padded", "full"),
    Fault("seams-ignored", "neat-packed", "full"),
    Fault("row-dropped", "neat-packed", "full"),
    Fault("adapter-frozen", "padded", "lora", "weights-still"),
    Fault("base-trained", "padded", "lora", "others-moved"),
    Fault("steps-skipped", "padded", "resumed", "resumed-elsewhere"),
    *LATER_FAULTS,
)


def checks() -> Iterator[Check]:
    """The checks of its supervised fine-tuning, and the faults that they must notice."""
    for family in FAMILIES:
        detail, qwen3 = f"llamafactory-sft/{family}", family == "qwen3"
        for layout in ("padded", "neat-packed"):
            for setting in SETTINGS:
                dtype = "bf16" if setting == "fa2" else "fp32"
                quick = setting == "sdpa" or (qwen3 and layout == "padded")
                yield trainer_check(detail, dtype, layout, "full", setting=setting, quick=quick)
        yield trainer_check(detail, "fp32", "packed", "full", quick=qwen3)
        yield trainer_check(detail, "fp32", "whole", "full", quick=qwen3)
        yield trainer_check(detail, "fp32", "neat-packed-whole", "full", quick=qwen3)
        yield trainer_check(detail, "bf16", "padded", "full", quick=qwen3)
        yield trainer_check(detail, "bf16", "neat-packed", "full")
        yield trainer_check(detail, "fp32", "padded", "lora", quick=True)
        yield trainer_check(detail, "fp32", "neat-packed", "lora")
        yield trainer_check(detail, "bf16", "padded", "qlora", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "uncheckpointed")
        yield trainer_check(detail, "fp32", "padded", "scheduled", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "resumed", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "resumed-lora")
        yield trainer_check(detail, "fp32", "neat-packed", "command")
    yield from fault_checks("llamafactory-sft", FAULTS)
