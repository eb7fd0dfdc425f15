"""The lowest NVIDIA driver that each CUDA release needs on Linux.

NVIDIA publishes it in the release notes of the CUDA Toolkit (table 2, "Minimum Required Driver Version for CUDA Minor
Version Compatibility"), which are not an artefact of a package index. uv's sdist is one and quotes that table, because
uv chooses a torch for a driver; so the table is read there, and each fact says so. NVIDIA's page on minor version
compatibility agrees (13.x: 580, 12.x: 525, 11.x: 450).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.index.artefact import UnreadableError, read_text_member
from knowngood_facts.facts.fact_reader import TableReader, choose_sdist

if TYPE_CHECKING:
    from knowngood.index.artefact import Artefact

_MEMBER = "crates/uv-torch/src/backend.rs"
_TABLE = re.compile(r"static LINUX_CUDA_DRIVERS\b.*?\n}\);", re.DOTALL)
_ROW = re.compile(r"TorchBackend::Cu(\d+)(\d), Version::new\(\[([\d, ]+)\]\)")
_OLDEST = 11  # CUDA major: before 11 every minor release had its own lowest driver, and no torch 2 uses one of them


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverFacts:
    """The driver that a CUDA release needs on Linux; `ReleaseFacts.version` is the CUDA release, `13.0`."""

    minimum: str | None
    """Lowest driver, `525.60.13`, with minor version compatibility: from 11.1 the same for all minors of a CUDA major.
    It runs compiled code; it cannot compile PTX of a newer minor."""
    source: str | None
    """The published table, and where it was read."""


def read_driver_table(artefact: Artefact) -> dict[str, dict[str, Any]]:
    """Return CUDA release -> its facts (see `DriverFacts`)."""
    return parse_driver_table(read_text_member(artefact, _MEMBER))


def parse_driver_table(source: str) -> dict[str, dict[str, Any]]:
    """Return the rows of uv's table; `UnreadableError` when it is not there in the known form."""
    table = _TABLE.search(source)
    rows = {
        f"{major}.{minor}": {
            "minimum": ".".join(f"{int(part):02d}" for part in version.split(",")),
            "source": f"NVIDIA CUDA Toolkit release notes, table 2, as quoted in uv's {_MEMBER}",
        }
        for major, minor, version in _ROW.findall(table[0] if table else "")
        if int(major) >= _OLDEST
    }
    if not rows:
        raise UnreadableError(f"{_MEMBER} has no table of drivers in the form that is known")
    return rows


READERS = (
    TableReader(
        package="drivers",
        project="uv",
        revision=1,
        model=DriverFacts,
        choose=choose_sdist,
        read=read_driver_table,
    ),
)
