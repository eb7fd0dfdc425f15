"""Which kernels ran, as the profiler saw it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from smoke_tests.settings import families_in

if TYPE_CHECKING:
    from collections.abc import Iterator

KEPT_CHARACTERS = 160  # a CUTLASS kernel's name can be thousands long


@contextlib.contextmanager
def watched(device: torch.device) -> Iterator[list[str]]:
    """Collect the names of operators and kernels that run inside; the list is filled at the end."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    names: list[str] = []
    with (
        profile(activities=activities, acc_events=True) if _has_acc_events() else profile(activities=activities) as run
    ):
        yield names
        synchronize(device)
    names.extend(sorted({event.name for event in run.events()}))


def _has_acc_events() -> bool:
    """Torch 2.6 and newer drop events at a cycle's end unless told not to, and warn about it."""
    import inspect

    return "acc_events" in inspect.signature(profile.__init__).parameters


def attention_names(names: list[str]) -> list[str]:
    """The names that belong to a family of attention kernels, shortened, for the report."""
    return sorted({name[:KEPT_CHARACTERS] for own in families_in(names).values() for name in own})


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if there is one."""
    if device.type == "cuda":
        torch.cuda.synchronize()
