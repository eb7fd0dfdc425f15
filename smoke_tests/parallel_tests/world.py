"""The place of a process among all processes of a check."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

COLLECTIVE_TIMEOUT = timedelta(seconds=120)  # the launcher's own limit ends a check that hangs before


@dataclass(frozen=True)
class World:
    """The number of this process, how many there are, and what they compute and talk with."""

    rank: int
    size: int
    device: torch.device
    backend: str

    def total(self, value: float) -> float:
        """The sum of every rank's value."""
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.item()

    def ranks(self) -> Iterator[int]:
        """The numbers of all processes."""
        return iter(range(self.size))


def join(backend: str) -> World:
    """Join the process group that the launcher's environment variables describe."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    named: dict[str, Any] = {}
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        named["device_id"] = device
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT, **named)
    return World(rank, size, device, backend)
