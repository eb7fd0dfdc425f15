"""The list of torchtitan's checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import Fault, fault_checks, trainer_check

from smoke_tests.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

DISTRIBUTION = "torchtitan"
MODULES = {"torchtitan-text": "torchtitan_train", "torchtitan-chat": "torchtitan_train"}
REFUSALS = (
    Refusal(
        r"ValueError: sdpa is no longer supported for language models",
        "refused",
        "torchtitan has no SDPA for language models, since it knows no documents",
    ),
    Refusal(
        r"ValueError: Flash backend of FlexAttention is only supported on Hopper or Blackwell",
        "refused",
        "torchtitan's flex_flash wants a Hopper or a newer GPU",
    ),
    Refusal(
        r"NotImplementedError: Could not run 'aten::_flash_attention_forward' with arguments from the 'CPU' backend",
        "refused",
        "torch's attention of rows of many lengths has kernels for GPUs only",
    ),
)
FAMILIES = ("llama3", "qwen3")

TEXT_FAULTS = (
    Fault("labels-shifted", "packed", "full"),
    Fault("seams-ignored", "packed", "full"),
    Fault("counted-twice", "packed", "full"),
    Fault("first-batch-lost", "packed", "full"),
    Fault("steps-skipped", "packed", "resumed", "resumed-elsewhere"),
)
CHAT_FAULTS = (
    Fault("labels-shifted", "padded", "full"),
    Fault("prompt-trained", "padded", "full"),
    Fault("padding-trained", "padded", "full"),
    Fault("row-dropped", "padded", "full"),
    Fault("counted-twice", "padded", "full"),
    Fault("mean-of-means", "padded", "full"),
    Fault("first-batch-lost", "padded", "full"),
    Fault("weight-frozen", "padded", "full", "weights-still"),
    Fault("steps-skipped", "padded", "resumed", "resumed-elsewhere"),
)


def checks() -> Iterator[Check]:
    """Its training on text and on chats, and the faults that they must notice."""
    for family in FAMILIES:
        qwen3 = family == "qwen3"
        text, chat = f"torchtitan-text/{family}", f"torchtitan-chat/{family}"
        for detail in (text, chat):
            yield trainer_check(detail, "fp32", "packed", "full", setting="eager", quick=True)
            yield trainer_check(detail, "fp32", "packed", "full", setting="flex", quick=qwen3)
            yield trainer_check(detail, "bf16", "packed", "full", setting="flex", quick=qwen3)
        for setting in ("fa3", "fa4"):
            yield trainer_check(text, "bf16", "packed", "full", setting=setting, quick=qwen3)
        yield trainer_check(text, "fp32", "packed", "full", quick=qwen3)
        yield trainer_check(chat, "fp32", "padded", "full", quick=True)
        yield trainer_check(chat, "bf16", "padded", "full", quick=qwen3)
        yield trainer_check(text, "fp32", "packed", "resumed", setting="eager", quick=qwen3)
        yield trainer_check(chat, "fp32", "padded", "resumed", quick=qwen3)
        yield trainer_check(text, "fp32", "packed", "command", setting="flex", quick=qwen3)
    yield from fault_checks("torchtitan-text", TEXT_FAULTS, setting="eager")
    yield from fault_checks("torchtitan-chat", CHAT_FAULTS)
