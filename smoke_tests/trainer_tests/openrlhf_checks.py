"""The list of OpenRLHF's checks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, PLAIN, Fault, fault_checks, trainer_check

from smoke_tests.catalogue import IMPORTING
from smoke_tests.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

DISTRIBUTION = "openrlhf"
USES = ("rollouts",)
MODULES = {
    "openrlhf-sft": "openrlhf_sft",
    "openrlhf-grpo": "openrlhf_ppo",
    "openrlhf-reinforce": "openrlhf_ppo",
    "openrlhf-command": "openrlhf_command",
}
REFUSALS = (
    Refusal(
        r"MissingCUDAException: .*unable to compile CUDA op|CUDA_HOME environment variable is not set"
        r"|FileNotFoundError: .*nvcc",
        "refused",
        "DeepSpeed compiles its optimizer for a GPU with nvcc, and there is none",
    ),
)
DTYPE = "bf16-pure"
"""Its models hold their weights in bf16 or fp16, and no option asks for fp32."""

SFT_FAULTS = (
    Fault("labels-shifted", "padded", "full"),
    Fault("prompt-trained", "padded", "full"),
    Fault("padding-trained", "padded", "full"),
    Fault("row-dropped", "padded", "full"),
    Fault("counted-twice", "padded", "full"),
    Fault("mean-of-means", "padded", "full"),
    Fault("first-batch-lost", "padded", "full"),
    Fault("adapter-frozen", "padded", "lora", "weights-still"),
    Fault("base-trained", "padded", "lora", "others-moved"),
    Fault("steps-skipped", "padded", "resumed", "resumed-elsewhere"),
    Fault("moments-lost", "padded", "resumed", "resumed-elsewhere"),
)
PACKED_FAULTS = (
    Fault("labels-shifted", "packed", "full"),
    Fault("seams-ignored", "packed", "full"),
    Fault("row-dropped", "packed", "full"),
    Fault("mean-of-means", "packed", "full"),
)
"""Those of its packing, which takes flash attention only."""
PPO_FAULTS = (
    Fault("labels-shifted", "right-padded", "full"),
    Fault("advantages-shuffled", "right-padded", "full"),
    Fault("counted-twice", "right-padded", "full"),
    Fault("mean-of-means", "right-padded", "full"),
    Fault("first-batch-lost", "right-padded", "full"),
    Fault("prompt-trained", "right-padded", "full"),
    Fault("end-ignored", "right-padded", "full"),
    Fault("reference-forgotten", "right-padded", "full"),
    Fault("padding-ignored", "left-padded", "full"),
)
PACKED_PPO_FAULTS = (Fault("seams-ignored", "packed", "full"), Fault("advantages-shuffled", "packed", "full"))
COMMAND_FAULTS = (Fault("weights-not-sent", "rollout", "full", "weights-not-sent"),)


def checks() -> Iterator[Check]:
    """The checks of its SFT, of its PPO and of the command of that, and the faults that they must notice."""
    for check in _checks():
        yield dataclasses.replace(check, timeout=IMPORTING)


def _checks() -> Iterator[Check]:
    for family in FAMILIES:
        yield from _sft(f"openrlhf-sft/{family}", qwen3=family == "qwen3")
        for algorithm in ("openrlhf-grpo", "openrlhf-reinforce"):
            yield from _ppo(f"{algorithm}/{family}", qwen3=family == "qwen3")
    yield from fault_checks("openrlhf-sft", SFT_FAULTS, dtype=DTYPE)
    yield from fault_checks("openrlhf-grpo", PPO_FAULTS, dtype=DTYPE)
    for trainer, faults in (("openrlhf-sft", PACKED_FAULTS), ("openrlhf-grpo", PACKED_PPO_FAULTS)):
        yield from fault_checks(trainer, faults, dtype=DTYPE, setting="fa2")
    for family, setting in (("qwen2", "sdpa"), ("qwen3", "fa2")):
        detail, quick = f"openrlhf-command/{family}", family == "qwen3"
        yield trainer_check(detail, DTYPE, "rollout", "full", setting=setting, quick=quick)
    for fault in COMMAND_FAULTS:  # nearly two minutes, most of which is the start of the command
        yield trainer_check(f"openrlhf-command/{fault.name}", DTYPE, fault.layout, fault.mode)


def _sft(detail: str, *, qwen3: bool) -> Iterator[Check]:
    for setting in (*PLAIN, "fa2"):
        yield trainer_check(detail, DTYPE, "padded", "full", setting=setting, quick=setting != "eager" or qwen3)
    for mode in ("full", "lora"):
        yield trainer_check(detail, DTYPE, "packed", mode, setting="fa2", quick=True)
    yield trainer_check(detail, DTYPE, "padded", "lora", quick=True)
    yield trainer_check(detail, DTYPE, "whole", "full", quick=qwen3)
    yield trainer_check(detail, DTYPE, "padded", "checkpointed", quick=qwen3)
    yield trainer_check(detail, DTYPE, "padded", "resumed", setting="eager", quick=qwen3)


def _ppo(detail: str, *, qwen3: bool) -> Iterator[Check]:
    for layout in ("right-padded", "left-padded"):
        for setting in ("sdpa", "fa2"):
            yield trainer_check(detail, DTYPE, layout, "full", setting=setting, quick=qwen3)
    yield trainer_check(detail, DTYPE, "packed", "full", setting="fa2", quick=True)
    if detail.startswith("openrlhf-grpo"):  # adapters of random values are so far from the reference that k3 is capped
        return
    yield trainer_check(detail, DTYPE, "right-padded", "lora", quick=qwen3)
    if qwen3:
        yield trainer_check(detail, DTYPE, "right-padded", "logged", quick=True)
