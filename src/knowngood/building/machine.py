"""What this machine has left: memory and disk."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import paths
from knowngood.building.schedule import Room
from knowngood.engines import embedded

if TYPE_CHECKING:
    from knowngood.engines.engine import Engine

# Limit and use of the control group that this process is in: version 2, then version 1.
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def left(engine: Engine) -> Room:
    """Memory that is free here, and disk that is free where the engine keeps its data."""
    return Room(memory=_memory(), disk=shutil.disk_usage(_data(engine)).free)


def jobs(processors: int | None = None) -> int:
    """How many cells at once suit the number of processors (this machine's): a build's export keeps several busy."""
    return max(1, min(4, (processors or os.cpu_count() or 1) // 4))


def _memory() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    free = [int(match[1]) * 1024] if match else []
    for limit, used in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # there is no such group, or no limit ("max")
            free.append(int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii")))
    return max(0, min(free, default=0))


def _data(engine: Engine) -> Path:
    """The folder of the engine's data; the cache's, when that is on another machine or cannot be seen."""
    wanted = embedded.places().data if engine.embedded else Path("/var/lib/docker")
    return next(path for path in (wanted, paths.cache_dir(), Path.home()) if path.is_dir())
