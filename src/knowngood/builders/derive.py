"""From a cell's Dockerfile to one that makes some of its layers and no image. Pure.

The stages are the cell's own, and each layer is joined by the very instruction that joins it in the cell. So BuildKit
knows the result again when the cell is built, by the key of its cache.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from knowngood.locks.lock import Layer

TARGET = "knowngood-layers"
VENV, SUITE = "venv", "suite"
"""The layers that are not of the lock, by the names of their stages."""


def is_ground(layer: str) -> bool:
    """Whether every other layer stands on this one."""
    return layer.partition("-")[0] in (VENV, SUITE)


def stages(dockerfile: str) -> frozenset[str]:
    """The names of its stages."""
    return frozenset(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))


def stage(layer: Layer) -> str:
    """The stage that installs a layer of the lock."""
    return f"layer-{layer.group}"


def layers(dockerfile: str, wanted: Iterable[str]) -> str:
    """The Dockerfile with a last stage that holds what these stages made, and nothing else."""
    copies = "".join(f"COPY --link --from={name} /out/ /\n" for name in wanted)
    return f"{dockerfile}\nFROM scratch AS {TARGET}\n{copies}"


def has(dockerfile: str, wanted: Collection[str]) -> bool:
    """Whether all of these stages are there: a project's own template may have none of them."""
    return stages(dockerfile) >= set(wanted)
