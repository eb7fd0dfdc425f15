"""The registry of readers: one a package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.harvest import (
    drivers,
    flash_attn,
    flash_attn_4,
    frameworks,
    torch,
    transformer_engine,
    transformers,
    triton,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.harvest.reading import Reader, Table

READERS: Mapping[str, Reader | Table] = {
    reader.package: reader
    for reader in (
        torch.READER,
        triton.READER,
        transformers.READER,
        flash_attn.READER,
        flash_attn_4.READER,
        *transformer_engine.READERS,
        *frameworks.READERS,
        drivers.TABLE,
    )
}
