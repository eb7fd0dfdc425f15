"""The list of megatron-core's checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, Fault, fault_checks, trainer_check

from smoke_tests.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

DISTRIBUTION = "megatron-core"
MODULES = {"megatron-core-gpt": "megatron_core_gpt"}
REFUSALS = (
    Refusal(
        r"AssertionError: Packed sequence is not supported by DotProductAttention",
        "refused",
        "megatron-core's local layers take no packed_seq_params, its Transformer Engine layers do",
    ),
    Refusal(
        r"TypeError: Wrapped parameters must be one of torch\.cuda\.FloatTensor",
        "refused",
        "megatron-core's optimizers with copies of the weights take weights on a GPU only",
    ),
    Refusal(
        r"ModuleNotFoundError: No module named 'scaled_\w+_cuda'",
        "not-run",
        "the kernels of masked_softmax_fusion are compiled with Megatron-LM, and in no wheel",
    ),
)

PADDED_FAULTS = tuple(
    Fault(name, "padded", "full")
    for name in (
        "labels-shifted",
        "prompt-trained",
        "padding-trained",
        "row-dropped",
        "counted-twice",
        "mean-of-means",
        "first-batch-lost",
    )
)
FAULTS = (
    *PADDED_FAULTS,
    Fault("weight-frozen", "padded", "full", "weights-still"),
    Fault("labels-shifted", "packed", "full"),
    Fault("ends-trained", "packed", "full"),
    Fault("seams-ignored", "packed", "full"),
    Fault("steps-skipped", "padded", "resumed", "resumed-elsewhere"),
)


def checks() -> Iterator[Check]:
    """Its GPT model with local layers, and the faults that they must notice."""
    for family in FAMILIES:
        detail, qwen3 = f"megatron-core-gpt/{family}", family == "qwen3"
        for layout in ("padded", "packed"):
            yield trainer_check(detail, "fp32", layout, "full", setting="eager", quick=True)
            yield trainer_check(detail, "fp32", layout, "distributed", setting="eager", quick=qwen3)
            yield trainer_check(detail, "bf16-pure", layout, "distributed", setting="eager", quick=qwen3)
        yield trainer_check(detail, "bf16-pure", "packed", "fused", setting="eager")
        yield trainer_check(detail, "fp32", "padded", "accumulated", setting="eager", quick=qwen3)
        yield trainer_check(detail, "fp32", "packed-varlen", "full", setting="eager", quick=qwen3)
        yield trainer_check(detail, "fp32", "padded", "resumed", setting="eager", quick=qwen3)
        yield trainer_check(detail, "fp32", "packed", "resumed", setting="eager")
        yield trainer_check(detail, "fp32", "padded", "resumed-distributed", setting="eager", quick=qwen3)
    yield from fault_checks("megatron-core-gpt", FAULTS, setting="eager")
