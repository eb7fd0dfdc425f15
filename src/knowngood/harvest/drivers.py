"""The least NVIDIA driver of each CUDA release on Linux.

NVIDIA publishes it in the release notes of the CUDA Toolkit (table 2, "Minimum Required Driver Version for CUDA Minor
Version Compatibility"), which is no artefact on a registry. uv's sdist is one, and quotes that table to choose a torch
for a driver; so it is read there, and each fact says so. NVIDIA's page on minor version compatibility agrees
(13.x: 580, 12.x: 525, 11.x: 450).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from knowngood.harvest.artefact import text
from knowngood.harvest.index import Unreadable
from knowngood.harvest.reading import Table, sdist

if TYPE_CHECKING:
    from knowngood.harvest.artefact import Artefact

_MEMBER = "crates/uv-torch/src/backend.rs"
_TABLE = re.compile(r"static LINUX_CUDA_DRIVERS\b.*?\n}\);", re.DOTALL)
_ROW = re.compile(r"TorchBackend::Cu(\d+)(\d), Version::new\(\[([\d, ]+)\]\)")
_OLDEST = 11  # CUDA major: before 11 every minor release had a floor of its own, and torch 2 has none of them


def read(artefact: Artefact) -> dict[str, dict[str, Any]]:
    """CUDA release -> its facts (see `knowngood.models.Driver`)."""
    return rows(text(artefact, _MEMBER))


def rows(source: str) -> dict[str, dict[str, Any]]:
    """The rows of uv's table; `Unreadable` when it is not there in the known form."""
    table = _TABLE.search(source)
    found = {
        f"{major}.{minor}": {
            "minimum": ".".join(f"{int(part):02d}" for part in version.split(",")),
            "source": f"NVIDIA CUDA Toolkit release notes, table 2, as quoted in uv's {_MEMBER}",
        }
        for major, minor, version in _ROW.findall(table[0] if table else "")
        if int(major) >= _OLDEST
    }
    if not found:
        raise Unreadable(f"{_MEMBER} has no table of drivers in the form that is known")
    return found


TABLE = Table(package="drivers", project="uv", revision=1, choose=sdist, read=read)
