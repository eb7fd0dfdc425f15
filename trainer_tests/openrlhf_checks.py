"""The list of OpenRLHF's checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smoke_tests.trainers.checks import FAMILIES, Fault, fault_checks, trainer_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check
    from smoke_tests.refusals import Refusal

DISTRIBUTION = "openrlhf"
MODULES = {"openrlhf-sft": "openrlhf_sft"}
REFUSALS: tuple[Refusal, ...] = ()
DTYPE = "bf16-pure"
SFT_FAULTS: tuple[Fault, ...] = ()


def checks() -> Iterator[Check]:
    """The checks."""
    for family in FAMILIES:
        yield trainer_check(f"openrlhf-sft/{family}", DTYPE, "padded", "full", quick=True)
    yield from fault_checks("openrlhf-sft", SFT_FAULTS, dtype=DTYPE)
