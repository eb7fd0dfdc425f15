"""A folder for all ranks of one machine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from parallel_tests.world import World


class shared_folder:  # noqa: N801 - used as a context manager
    """A folder that rank 0 makes and removes, and all ranks of this machine use."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __enter__(self) -> Path:
        names = [tempfile.mkdtemp(prefix="parallel-") if self.world.rank == 0 else None]
        dist.broadcast_object_list(names, device=self.world.device)
        self.path = Path(names[0])
        return self.path

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            dist.barrier()
        if self.world.rank == 0:
            shutil.rmtree(self.path, ignore_errors=True)
