"""The memory and the disk that this machine has left, and whether that is enough for a build."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from knowngood.core import local_files
from knowngood.engine import unpacked_engine
from knowngood.engine.container_engine import Engine

# Limit and use, in bytes, of the control group of this process: version 2, then version 1.
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def measure_free_memory() -> int:
    """Return the bytes of memory that this machine, and the control group of this process, have left."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    free = [int(match[1]) * 1024] if match else []
    for limit, used in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # there is no such group, or it has no limit ("max")
            free.append(int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii")))
    return max(0, min(free, default=0))


def measure_free_disk(engine: Engine) -> int:
    """Return the free bytes where the engine keeps its data; in the cache, when that is elsewhere or unreadable."""
    data = unpacked_engine.engine_paths().data if engine.embedded else Path("/var/lib/docker")
    folder = next(path for path in (data, local_files.cache_folder(), Path.home()) if path.is_dir())
    return shutil.disk_usage(folder).free


DISK_PER_BYTE = 7
"""Bytes on disk for each byte of a wheel while its layer is made: unpacked three times, and compressed."""
DISK_AT_LEAST = 3
"""Bytes on disk that remain for each byte of a wheel; a build that was stopped may have written the rest already."""


def describe_lack_of_disk(wheels: int, free: int) -> str:
    """Return why layers with so many bytes of wheels cannot be made beside so many free ones; empty if they can."""
    if wheels * DISK_AT_LEAST <= free:
        return ""
    return (
        f"building it takes up to {DISK_PER_BYTE * wheels / 1e9:.0f} GB of disk, {free / 1e9:.0f} GB are free; make "
        "space (`docker system prune`, `knowngood engine down`), or select another cell"
    )
