"""The list of verl's checks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, PLAIN, Fault, fault_checks, trainer_check

from smoke_tests.catalogue import IMPORTING
from smoke_tests.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

DISTRIBUTION = "verl"
USES = ("rollouts",)
MODULES = {"verl-sft": "verl_sft", "verl-grpo": "verl_grpo"}
REFUSALS = (
    Refusal(
        r"Found no NVIDIA driver on your system|ProcessGroupNCCL is only supported with GPUs"
        r"|No engine registered for device='cpu'|Torch not compiled with CUDA enabled",
        "refused",
        "verl has platforms and engines for GPUs and NPUs only",
    ),
)

FAULTS = (
    Fault("labels-shifted", "packed", "full"),
    Fault("labels-shifted", "padded", "full"),
    Fault("prompt-trained", "packed", "full"),
    Fault("row-dropped", "packed", "full"),
    Fault("counted-twice", "packed", "full"),
    Fault("mean-of-means", "packed", "full"),
    Fault("first-batch-lost", "packed", "full"),
    Fault("seams-ignored", "packed", "full"),
    Fault("weight-frozen", "packed", "full", "weights-still"),
    Fault("adapter-frozen", "packed", "lora", "weights-still"),
    Fault("base-trained", "packed", "lora", "others-moved"),
    Fault("steps-skipped", "packed", "resumed", "resumed-elsewhere"),
    Fault("moments-lost", "packed", "resumed", "resumed-elsewhere"),
)
GRPO_FAULTS = (
    Fault("advantages-shuffled", "rollout", "full"),
    Fault("first-batch-lost", "rollout", "full"),
    Fault("weights-not-sent", "rollout", "full", "weights-not-sent"),
)


def checks() -> Iterator[Check]:
    """The checks of its supervised fine-tuning and of its GRPO, and the faults that they must notice."""
    for check in _checks():
        yield dataclasses.replace(check, timeout=IMPORTING)


def _checks() -> Iterator[Check]:
    for family in FAMILIES:
        detail, qwen3 = f"verl-sft/{family}", family == "qwen3"
        for layout in ("packed", "padded"):
            for setting in PLAIN:
                yield trainer_check(detail, "fp32", layout, "full", setting=setting, quick=setting == "sdpa")
            yield trainer_check(detail, "bf16", layout, "full", quick=layout == "packed")
            yield trainer_check(detail, "bf16", layout, "full", setting="fa2", quick=qwen3)
            yield trainer_check(detail, "fp32", layout, "lora", quick=layout == "packed")
        yield trainer_check(detail, "fp32", "dynamic", "full", quick=qwen3)
        yield trainer_check(detail, "bf16", "packed", "lora", quick=qwen3)
        yield trainer_check(detail, "fp32", "packed", "fsdp2", quick=qwen3)
        yield trainer_check(detail, "fp32", "packed", "fsdp2-lora")
        yield trainer_check(detail, "fp32", "packed", "uncheckpointed")
        yield trainer_check(detail, "fp32", "packed", "resumed", quick=qwen3)
        yield trainer_check(detail, "fp32", "packed", "resumed-lora")
    yield trainer_check("verl-sft/qwen3", "fp32", "packed", "command", quick=True)
    yield from fault_checks("verl-sft", FAULTS)
    for family in FAMILIES:
        yield trainer_check(f"verl-grpo/{family}", "fp32", "rollout", "full", quick=family == "qwen3")
    for fault in GRPO_FAULTS:  # two minutes each, most of which is the start of the command
        yield trainer_check(f"verl-grpo/{fault.name}", "fp32", fault.layout, fault.mode)
