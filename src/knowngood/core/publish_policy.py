"""The section `publish` of matrix.yaml: how far the image of a cell must be proven to be published. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from knowngood.core.cell import Cell

LeastTier = Literal["built", "trains-on-cpu", "trains-on-gpu"]
"""The tiers that an image with a good run can have, from the least to the most."""


@dataclass(frozen=True, kw_only=True)
class PublishPolicy:
    """The least tier of the images that are published."""

    tier: LeastTier = "built"
    """For every GPU that `gpus` does not name; `built` takes every image with a good run."""
    gpus: Mapping[str, LeastTier] = field(default_factory=dict)
    """GPU architecture -> the least tier of its images."""

    def least_tier(self, cell: Cell) -> LeastTier:
        """Return the least tier with which the image of a cell is published."""
        return self.gpus.get(cell.gpu, self.tier)
