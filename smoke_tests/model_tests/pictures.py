"""An image at the start of every sequence, for models of text and images that place tokens in three dimensions.

So far that is Qwen2-VL (https://arxiv.org/abs/2409.12191): the tokens of an image have one time and a place in a
grid; the text behind it goes on at the largest of them plus one.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from smoke_tests import model as smoke_model

GRID = (1, 4, 6)  # time, height and width in patches; odd enough that height and width cannot be swapped


@dataclass(frozen=True)
class Pictures:
    """How images enter a model."""

    start: int
    image: int
    end: int
    merge: int
    patch: int
    """The numbers that describe one patch: channels x frames x height x width."""

    @property
    def prefix(self) -> list[int]:
        """The tokens before the text of a sequence: start, one for each merged patch, end."""
        return [self.start, *[self.image] * self._merged, self.end]

    @property
    def _merged(self) -> int:
        return GRID[0] * (GRID[1] // self.merge) * (GRID[2] // self.merge)

    def positions(self, length: int) -> torch.Tensor:
        """4 x length: the place in the sequence, then time, height and width of each token."""
        rows, columns = GRID[1] // self.merge, GRID[2] // self.merge
        height = torch.arange(rows).repeat_interleave(columns)
        width = torch.arange(columns).repeat(rows)
        image = 1 + torch.stack([torch.zeros_like(height), height, width])
        rest = length - 1 - self._merged
        text = int(image.max()) + 1 + torch.arange(rest).expand(3, -1)
        spatial = torch.cat([torch.zeros(3, 1, dtype=torch.long), image, text], 1)
        return torch.cat([torch.arange(length)[None], spatial])

    def inputs(self, model: Any, rows: list[list[int]], tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the model gets beside the tokens of these sequences; ``tokens`` is the batch that holds them."""
        count, device = GRID[0] * GRID[1] * GRID[2], tokens.device
        # exact in every precision, and the same numbers where float32 is doubled
        patches = [torch.randint(-64, 65, (count, self.patch), generator=_generator(row)) / 32 for row in rows]
        made = {
            "pixel_values": torch.cat(patches).to(device=device, dtype=model.dtype),
            "image_grid_thw": torch.tensor([GRID] * len(rows), device=device),
        }
        if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
            made["mm_token_type_ids"] = (tokens == self.image).int()
        return made


def _generator(row: list[int]) -> torch.Generator:
    return torch.Generator().manual_seed(smoke_model.SEED + sum(place * token for place, token in enumerate(row)))


def find_pictures(config: Any) -> Pictures | None:
    """How images enter a model of this configuration; None for a model of text."""
    vision = getattr(config, "vision_config", None)
    if vision is None or config.model_type != "qwen2_vl":
        return None
    return Pictures(
        start=config.vision_start_token_id,
        image=config.image_token_id,
        end=config.vision_end_token_id,
        merge=vision.spatial_merge_size,
        patch=vision.in_channels * vision.temporal_patch_size * vision.patch_size**2,
    )
