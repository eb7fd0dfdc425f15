"""The list of the checks of TRL's trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, FUSED, LATER_FAULTS, PLAIN, Fault, fault_checks, trainer_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check
    from smoke_tests.refusals import Refusal

DISTRIBUTION = "trl"
MODULES = {"trl-sft": "trl_sft", "trl-dpo": "trl_dpo", "trl-grpo": "trl_grpo"}
REFUSALS: tuple[Refusal, ...] = ()

SFT_FAULTS = (
    Fault("labels-shifted", "padded", "full"),
    Fault("prompt-trained", "completion", "full"),
    Fault("padding-trained", "padded", "full"),
    Fault("counted-twice", "padded", "full"),
    Fault("mean-of-means", "padded", "full"),
    Fault("first-batch-lost", "padded", "full"),
    Fault("seams-ignored", "packed", "full"),
    Fault("row-dropped", "packed", "full"),
    Fault("adapter-frozen", "padded", "lora", "weights-still"),
    Fault("base-trained", "padded", "lora", "others-moved"),
    Fault("steps-skipped", "padded", "resumed", "resumed-elsewhere"),
    *LATER_FAULTS,
)
DPO_FAULTS = (
    Fault("pairs-swapped", "pairs", "full"),
    Fault("end-ignored", "pairs", "full"),
    Fault("reference-adapted", "pairs", "lora"),
    Fault("first-batch-lost", "pairs", "full"),
)
GRPO_FAULTS = (
    Fault("advantages-shuffled", "rollout", "full"),
    Fault("first-batch-lost", "rollout", "full"),
)


def checks() -> Iterator[Check]:
    """The checks of SFTTrainer, DPOTrainer and GRPOTrainer, and the faults that each must notice."""
    for family in FAMILIES:
        yield from _sft(f"trl-sft/{family}", family)
    for family in FAMILIES:
        yield from _dpo(f"trl-dpo/{family}", family)
    for family in FAMILIES:
        for mode in ("full", "lora"):
            yield trainer_check(f"trl-grpo/{family}", "fp32", "rollout", mode, quick=family == "qwen3")
    for trainer, faults in (("trl-sft", SFT_FAULTS), ("trl-dpo", DPO_FAULTS), ("trl-grpo", GRPO_FAULTS)):
        yield from fault_checks(trainer, faults)


def _sft(detail: str, family: str) -> Iterator[Check]:
    for layout in ("padded", "packed"):
        for setting in (*PLAIN, *FUSED):
            dtype = "bf16" if setting in FUSED else "fp32"
            quick = setting == "sdpa" or (family == "qwen3" and setting in FUSED)
            yield trainer_check(detail, dtype, layout, "full", setting=setting, quick=quick)
    yield trainer_check(detail, "fp32", "padded", "lora", quick=True)
    yield trainer_check(detail, "fp32", "packed", "lora")
    yield trainer_check(detail, "bf16", "padded", "qlora", quick=family == "qwen3")
    yield trainer_check(detail, "fp32", "completion", "full", quick=True)
    yield trainer_check(detail, "bf16", "padded", "full")
    yield trainer_check(detail, "fp32", "packed", "uncheckpointed")
    yield trainer_check(detail, "fp32", "padded", "scheduled", quick=family == "qwen3")
    yield trainer_check(detail, "fp32", "padded", "scheduled-lora")
    yield trainer_check(detail, "fp32", "padded", "resumed", quick=family == "qwen3")
    yield trainer_check(detail, "fp32", "padded", "resumed-lora")
    yield trainer_check(detail, "fp32", "packed", "command", quick=family == "qwen3")


def _dpo(detail: str, family: str) -> Iterator[Check]:
    for mode in ("full", "lora"):
        yield trainer_check(detail, "fp32", "pairs", mode, quick=family == "qwen3")
    yield trainer_check(detail, "fp32", "pairs", "resumed")
    for setting in FUSED:
        yield trainer_check(detail, "bf16", "pairs", "full", setting=setting)
