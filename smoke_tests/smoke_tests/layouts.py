"""The layouts in which the same sequences reach the model: padded on a side, or packed into one row.

``right-padded`` and ``left-padded`` pass an attention mask and, as trainers do, no position ids. ``packed``
puts all sequences into one row and marks the seams by position ids that start again at 0. ``packed-varlen``
adds the cumulative lengths (transformers' ``FlashAttentionKwargs``); ``packed-mask`` marks the seams by a
four-dimensional block-diagonal mask, the way for eager and SDPA before position ids were read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from smoke_tests import data


@dataclass
class Batch:
    """What the model is called with, and what it must predict."""

    inputs: dict[str, Any]
    targets: torch.Tensor
    lengths: tuple[int, ...]
    packed: bool = False


def lengths_of(layout: str) -> tuple[int, ...]:
    """The lengths of the sequences that a layout holds."""
    return data.DENSE if layout == "dense" else data.RAGGED


def batch(layout: str, device: torch.device, mask_dtype: torch.dtype, seed: int = 0) -> Batch:
    """Lay the sequences of a seed out."""
    lengths = lengths_of(layout)
    rows = data.sequences(lengths, seed)
    build = _packed if layout.startswith("packed") else _padded
    made = build(layout, rows, mask_dtype)
    made.inputs = {name: _to(value, device) for name, value in made.inputs.items()}
    made.targets = made.targets.to(device)
    return made


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _padded(layout: str, rows: list[list[int]], _mask_dtype: torch.dtype) -> Batch:
    longest = max(map(len, rows))

    def pad(row: list[int], filler: int) -> list[int]:
        padding = [filler] * (longest - len(row))
        return padding + row if layout == "left-padded" else row + padding

    inputs = {"input_ids": torch.tensor([pad(row, 0) for row in rows])}
    if layout != "dense":
        inputs["attention_mask"] = torch.tensor([pad([1] * len(row), 0) for row in rows])
    targets = torch.tensor([pad(data.targets(row), data.IGNORED) for row in rows])
    return Batch(inputs, targets, tuple(map(len, rows)))


def _packed(layout: str, rows: list[list[int]], mask_dtype: torch.dtype) -> Batch:
    lengths = [len(row) for row in rows]
    inputs: dict[str, Any] = {
        "input_ids": torch.tensor([[token for row in rows for token in row]]),
        "position_ids": torch.tensor([[position for length in lengths for position in range(length)]]),
    }
    if layout == "packed-varlen":
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        inputs.update(cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=max(lengths), max_length_k=max(lengths))
    if layout == "packed-mask":
        inputs["attention_mask"] = _block_diagonal(lengths, mask_dtype)
    targets = torch.tensor([[target for row in rows for target in data.targets(row)]])
    return Batch(inputs, targets, tuple(lengths), packed=True)


def _block_diagonal(lengths: list[int], dtype: torch.dtype) -> torch.Tensor:
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    allowed = (owner[:, None] == owner[None, :]).tril()
    mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
    return mask[None, None]
