"""The registry of readers: one a package, each in a module of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.harvest import flash_attn, torch, transformers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.harvest.reading import Reader

READERS: Mapping[str, Reader] = {reader.package: reader for reader in (torch.READER, transformers.READER, flash_attn.READER)}
