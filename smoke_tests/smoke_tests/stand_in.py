"""A stand-in of flash-attn's public functions in plain torch, for machines that cannot run its kernels.

It has flash-attn's names, arguments and results, so that code which calls them runs and its numbers can be compared;
it proves nothing of flash-attn itself.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

import torch
from torch.nn import functional

TOLD = "flash_attn: its public functions in plain torch (smoke_tests/stand_in.py), since no kernel of it can run here"


def install() -> str:
    """Make ``import flash_attn`` give the stand-in, and transformers believe it; before any model is imported."""
    package = _module("flash_attn", flash_attn_func, flash_attn_varlen_func)
    package.bert_padding = _module("flash_attn.bert_padding", index_first_axis, pad_input, unpad_input)
    import transformers.utils
    from transformers.utils import import_utils

    for place in (transformers.utils, import_utils):
        place.is_flash_attn_2_available = lambda: True
    return TOLD


def _module(name: str, *functions: Any) -> Any:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    for function in functions:
        setattr(made, function.__name__, function)
    sys.modules[name] = made
    return made


def flash_attn_func(  # noqa: PLR0913, PLR0917 - they are flash-attn's
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **others: Any,
) -> torch.Tensor:
    """Attention over (batch, length, heads, size)."""
    if window_size != (-1, -1) or any(others.values()):
        raise NotImplementedError(f"the stand-in has no window_size={window_size}, {others}")
    group = q.shape[2] // k.shape[2]
    query, key, value = (states.transpose(1, 2) for states in (q, k, v))
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    mixed = functional.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale
    )
    return mixed.transpose(1, 2)


def flash_attn_varlen_func(  # noqa: PLR0913, PLR0917
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **others: Any,
) -> torch.Tensor:
    """Attention over sequences laid end to end, (total, heads, size)."""
    del max_seqlen_q, max_seqlen_k
    ends = list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist()))
    parts = [
        flash_attn_func(q[None, a:b], k[None, c:d], v[None, c:d], dropout_p, softmax_scale, causal, **others)[0]
        for (a, c), (b, d) in zip(ends, ends[1:])
    ]
    return torch.cat(parts)


def index_first_axis(states: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The rows of those indices."""
    return states[indices]


def unpad_input(states: torch.Tensor, attention_mask: torch.Tensor) -> tuple[Any, ...]:
    """Without the padding: states, where they were, cumulative lengths, the longest."""
    lengths = attention_mask.sum(-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    ends = functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return states.flatten(0, 1)[indices], indices, ends, int(lengths.max())


def pad_input(states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """The inverse of ``unpad_input``."""
    padded = states.new_zeros(batch * seqlen, *states.shape[1:])
    return padded.index_copy(0, indices, states).unflatten(0, (batch, seqlen))
