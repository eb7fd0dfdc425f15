"""What connects the ranks: NCCL's version and transport, and the bandwidth of an all-reduce.

NCCL says its transports in its log, which it writes for each rank to the file that ``NCCL_DEBUG_FILE`` names. On gloo
the bandwidth is that of the loopback interface. Not run with NCCL so far; see docs/parallel.md.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from parallel_tests.world import World

BYTES = {"gloo": 1 << 22, "nccl": 1 << 28}
ROUNDS = 5


def run_connection(world: World, report: dict[str, Any]) -> None:
    """Add up a tensor over all ranks, compare the sum, and measure it. All ranks call it."""
    count = BYTES[world.backend] // 4
    tensor = torch.full((count,), float(world.rank + 1), device=world.device)
    dist.all_reduce(tensor)
    wanted = world.size * (world.size + 1) / 2
    wrong = int((tensor != wanted).sum())
    seconds = []
    for _ in range(ROUNDS):
        dist.barrier()
        _synchronize(world)
        started = time.monotonic()
        dist.all_reduce(tensor)
        _synchronize(world)
        seconds.append(time.monotonic() - started)
    moved = 2 * (world.size - 1) / world.size * BYTES[world.backend]  # a ring's bytes over each link
    report["transport"] = {
        "backend": world.backend,
        "version": ".".join(map(str, torch.cuda.nccl.version())) if world.backend == "nccl" else None,
        "channels": _channels(os.environ.get("NCCL_DEBUG_FILE")),
        "bus_gigabytes_per_second": round(moved / min(seconds) / 1e9, 3),
    }
    report["figures"] = {"wrong_sums": wrong}
    if wrong:
        from smoke_tests.outcomes import Failed

        raise Failed(f"{wrong} of {count} sums over all ranks are not {wanted}")


def _synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def _channels(file: str | None) -> list[str]:
    """The transports in NCCL's log, ``P2P/CUMEM`` or ``NET/Socket/0``, each once."""
    if not file or not Path(file).exists():
        return []
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    return sorted(set(re.findall(r"Channel .* via (\S+)", text)))
