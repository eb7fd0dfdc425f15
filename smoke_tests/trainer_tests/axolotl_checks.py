"""The list of axolotl's checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, FUSED, LATER_FAULTS, PLAIN, Fault, fault_checks, trainer_check

from smoke_tests.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

DISTRIBUTION = "axolotl"
MODULES = {"axolotl-sft": "axolotl_sft"}
REFUSALS = (
    Refusal(
        r"ValueError: Your setup doesn't support bf16/gpu",
        "refused",
        "transformers takes bf16 without a GPU only with use_cpu, which axolotl does not pass on",
    ),
)
SETTING_REFUSALS = (
    Refusal(
        r"KeyError: .*kernels-community/\S+ is not a valid attention implementation",
        "not-run",
        "the package is not installed, and transformers asks for a kernel of the hub, since axolotl requires `kernels`",
    ),
)
"""What the checks of settings without a trainer may be told in this trainer's image."""

FAULTS = (
    Fault("labels-shifted", "padded", "full"),
    Fault("prompt-trained", "padded", "full"),
    Fault("padding-trained", "padded", "full"),
    Fault("first-batch-lost", "padded", "full", "weights-still"),  # a step is one batch
    Fault("seams-ignored", "packed", "full"),
    Fault("row-dropped", "packed", "full"),
    Fault("adapter-frozen", "padded", "lora", "weights-still"),
    Fault("base-trained", "padded", "lora", "others-moved"),
    Fault("steps-skipped", "padded", "resumed", "resumed-elsewhere"),
    *LATER_FAULTS,
)


def checks() -> Iterator[Check]:
    """The checks of its supervised fine-tuning, and the faults that they must notice."""
    for family in FAMILIES:
        detail, qwen3 = f"axolotl-sft/{family}", family == "qwen3"
        for layout in ("padded", "packed"):
            for setting in (*PLAIN, *FUSED, "flex"):
                dtype = "bf16" if setting in FUSED else "fp32"
                quick = setting == "sdpa" or (qwen3 and setting == "flex")
                yield trainer_check(detail, dtype, layout, "full", setting=setting, quick=quick)
        yield trainer_check(detail, "fp32", "padded", "accumulated", quick=True)
        yield trainer_check(detail, "fp32", "whole", "full", quick=qwen3)
        yield trainer_check(detail, "fp32", "packed-whole", "full", quick=qwen3)
        yield trainer_check(detail, "bf16", "padded", "full", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "lora", quick=True)
        yield trainer_check(detail, "fp32", "packed", "lora")
        yield trainer_check(detail, "bf16", "padded", "qlora", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "uncheckpointed")
        yield trainer_check(detail, "fp32", "padded", "resumed", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "resumed-lora")
        yield trainer_check(detail, "fp32", "packed", "command")
    yield from fault_checks("axolotl-sft", FAULTS)
