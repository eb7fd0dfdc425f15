"""The reference of a trainer's first step: Qwen2 and Qwen3 in plain torch, fp64, one row at a time.

Like ``smoke_tests.reference``, whose parts it uses, it knows no padding, no seam and no batch: a step is the mean over
all predicted tokens of all its rows, however they were laid out and in however many batches they came.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from smoke_tests import data, reference

Weights = dict[str, torch.Tensor]
Row = tuple[list[int], list[int]]
"""The tokens of a row, and what each position must predict."""


def leaves_of(weights: Weights, trained: set[str]) -> Weights:
    """Weights as fp64 leaves on the CPU, of which the ``trained`` ones ask for gradients."""
    return {
        name: value.detach().double().cpu().clone().requires_grad_(name in trained) for name, value in weights.items()
    }


def mean_loss_and_gradients(weights: Weights, trained: set[str], rows: list[Row], shape: Any) -> tuple[float, Weights]:
    """The mean loss over all predicted tokens of the rows, and the gradient of every trained weight."""
    leaves = leaves_of(weights, trained)
    effective = reference._with_adapters(leaves)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for tokens, wanted in rows:
        logits = logits_of(effective, tokens, shape)
        total = total + functional.cross_entropy(
            logits, torch.tensor(wanted), ignore_index=data.IGNORED, reduction="sum"
        )
        count += sum(token != data.IGNORED for token in wanted)
    loss = total / count
    loss.backward()
    return loss.item(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def logits_of(weights: Weights, tokens: list[int], shape: Any) -> torch.Tensor:
    """The logits of one row."""
    hidden = weights["model.embed_tokens.weight"][torch.tensor(tokens)]
    for number in range(shape.layers):
        layer = f"model.layers.{number}."
        normed = reference._norm(hidden, weights[layer + "input_layernorm.weight"])
        hidden = hidden + _attention(weights, layer + "self_attn.", normed, shape)
        normed = reference._norm(hidden, weights[layer + "post_attention_layernorm.weight"])
        gate = functional.silu(normed @ weights[layer + "mlp.gate_proj.weight"].T)
        up = normed @ weights[layer + "mlp.up_proj.weight"].T
        hidden = hidden + (gate * up) @ weights[layer + "mlp.down_proj.weight"].T
    return reference._norm(hidden, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


def _attention(weights: Weights, prefix: str, hidden: torch.Tensor, shape: Any) -> torch.Tensor:
    """Attention of Qwen2 (which has biases) or Qwen3 (which has none, and norms on queries and keys)."""
    places = torch.arange(len(hidden))

    def heads(name: str, count: int) -> torch.Tensor:
        projected = hidden @ weights[f"{prefix}{name}_proj.weight"].T
        bias = weights.get(f"{prefix}{name}_proj.bias")
        states = (projected if bias is None else projected + bias).view(len(hidden), count, shape.head_dim)
        norm = weights.get(f"{prefix}{name}_norm.weight")
        return (states if norm is None else reference._norm(states, norm)).transpose(0, 1)

    query = reference._rotate(heads("q", shape.heads), places)
    key, value = reference._rotate(heads("k", shape.kv_heads), places), heads("v", shape.kv_heads)
    group = shape.heads // shape.kv_heads
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = query @ key.transpose(1, 2) / math.sqrt(shape.head_dim)
    later = torch.ones(len(hidden), len(hidden), dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ value
    return mixed.transpose(0, 1).reshape(len(hidden), -1) @ weights[prefix + "o_proj.weight"].T
