"""The list of trainers' checks. Pure data, like ``smoke_tests.catalogue``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smoke_tests.catalogue import Check

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 300.0  # the first check of a trainer imports it: half a minute on a busy machine
FAMILIES = ("qwen2", "qwen3")
FUSED = ("fa2", "fa4")
PLAIN = ("eager", "sdpa")


@dataclass(frozen=True)
class Fault:
    """A fault that is put into a trainer's path on purpose, and the check that must notice it."""

    name: str
    layout: str
    mode: str


SFT_FAULTS = (
    Fault("labels-shifted", "padded", "full"),
    Fault("prompt-trained", "completion", "full"),
    Fault("padding-trained", "padded", "full"),
    Fault("counted-twice", "padded", "full"),
    Fault("mean-of-means", "padded", "full"),
    Fault("first-batch-lost", "padded", "full"),
    Fault("seams-ignored", "packed", "full"),
    Fault("row-dropped", "packed", "full"),
    Fault("adapter-frozen", "padded", "lora"),
    Fault("base-trained", "padded", "lora"),
    Fault("steps-skipped", "padded", "resumed"),
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


def trainers() -> Iterator[Check]:
    """The checks of every trainer; those of trainers that are not installed are not run."""
    for family in FAMILIES:
        yield from _sft(f"trl-sft/{family}", family)
    for family in FAMILIES:
        yield from _dpo(f"trl-dpo/{family}", family)
    for family in FAMILIES:
        for mode in ("full", "lora"):
            yield _check(f"trl-grpo/{family}", "fp32", "rollout", mode, quick=family == "qwen3")
    for trainer, faults in (("trl-sft", SFT_FAULTS), ("trl-dpo", DPO_FAULTS), ("trl-grpo", GRPO_FAULTS)):
        for fault in faults:
            yield _check(f"{trainer}/{fault.name}", "fp32", fault.layout, fault.mode, quick=True)


def _sft(detail: str, family: str) -> Iterator[Check]:
    for layout in ("padded", "packed"):
        for setting in (*PLAIN, *FUSED):
            dtype = "bf16" if setting in FUSED else "fp32"
            yield _check(detail, dtype, layout, "full", setting=setting, quick=setting == "sdpa")
    yield _check(detail, "fp32", "padded", "lora", quick=True)
    yield _check(detail, "fp32", "packed", "lora")
    yield _check(detail, "bf16", "padded", "qlora", quick=family == "qwen3")
    yield _check(detail, "fp32", "completion", "full", quick=True)
    yield _check(detail, "bf16", "padded", "full")
    yield _check(detail, "fp32", "packed", "uncheckpointed")
    yield _check(detail, "fp32", "padded", "resumed", quick=family == "qwen3")
    yield _check(detail, "fp32", "padded", "resumed-lora")
    yield _check(detail, "fp32", "packed", "command", quick=family == "qwen3")


def _dpo(detail: str, family: str) -> Iterator[Check]:
    for mode in ("full", "lora"):
        yield _check(detail, "fp32", "pairs", mode, quick=family == "qwen3")
    yield _check(detail, "fp32", "pairs", "resumed")
    for setting in FUSED:
        yield _check(detail, "bf16", "pairs", "full", setting=setting)


def _check(  # noqa: PLR0913 - they are the parts of its id
    detail: str, dtype: str, layout: str, mode: str, *, setting: str = "sdpa", quick: bool = False
) -> Check:
    return Check("trainer", setting, dtype, layout, mode, detail=detail, quick=quick, timeout=TIMEOUT)
