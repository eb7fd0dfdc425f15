"""The reference: the tiny Qwen2 written out in plain torch, in fp64 on the CPU, one sequence at a time.

It shares no line with transformers, knows no padding, no seam and no mask but the causal triangle. So a
layout that leaks across a seam, a padding that is attended to, a head order or a softmax scale that is off
all differ from it, and eager attention is tested like every other setting. Architecture: Qwen2 technical
report, https://arxiv.org/abs/2407.10671, and transformers' modeling_qwen2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from smoke_tests import data, gradient_shares

Weights = dict[str, torch.Tensor]


def losses_and_gradients(
    weights: Weights, sequences: list[list[int]], shape: Any, *, seams: bool = True, device: Any = "cpu"
) -> tuple[float, Weights]:
    """The mean loss over all predicted tokens and the gradient of every weight that asks for one.

    Without ``seams`` it computes what a packed row gives when attention does not stop at them, to name that fault.
    ``device`` is where it computes: a GPU takes a tenth of the time, once its answer was seen to be the CPU's.
    """
    leaves = {
        name: value.detach().double().to(device).requires_grad_(value.requires_grad) for name, value in weights.items()
    }
    effective = _with_adapters(leaves)
    wanted = [data.targets(tokens) for tokens in sequences]
    positions = [list(range(len(tokens))) for tokens in sequences]
    rows = list(zip(sequences, positions, wanted))
    if not seams:
        rows = [tuple(sum(part, []) for part in zip(*rows))]  # noqa: RUF017 - four short lists
    total = torch.zeros((), dtype=torch.float64, device=device)
    for row in rows:
        tokens, places, targets = (torch.tensor(part, device=device) for part in row)
        logits = _forward(effective, tokens, places, shape)
        total = total + functional.cross_entropy(logits, targets, ignore_index=data.IGNORED, reduction="sum")
    loss = total / sum(len(tokens) - 1 for tokens in sequences)
    loss.backward()
    return loss.item(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def errors(
    parameters: dict[str, Any], sequences: list[list[int]], shape: Any, loss: float, *, seams: bool = True
) -> dict[str, Any]:
    """How far a loss and the parameters' gradients lie from the reference's of those sequences.

    It says nothing by the kind of weight, whose bounds are measured for transformers' own model and loss.
    """
    expected_loss, expected = losses_and_gradients(parameters, sequences, shape, seams=seams)
    found = distances(parameters, loss, expected_loss, expected)
    del found["shares"]
    return found


def distances(parameters: dict[str, Any], loss: float, expected_loss: float, expected: Weights) -> dict[str, Any]:
    """How far a loss and the parameters' gradients lie from the expected ones; raises ``Failed`` for one without."""
    found = gradient_shares.shares({name: parameters[name].grad for name in expected}, expected)
    worst = max(found, key=lambda name: gradient_shares.magnitude(found[name][1]))
    return {
        "loss": abs(loss - expected_loss) / expected_loss,
        "gradient": found[worst][1],
        "gradient_of": worst,
        "reference_loss": expected_loss,
        "shares": gradient_shares.worst_by_kind(found),
    }


def _with_adapters(leaves: Weights) -> Weights:
    """Fold low-rank adapters into the weights they adapt (LoRA, https://arxiv.org/abs/2106.09685)."""
    effective = {}
    for name, value in leaves.items():
        if ".lora_" in name:
            continue
        stem = name[: -len(".weight")]
        down, up = leaves.get(f"{stem}.lora_A.weight"), leaves.get(f"{stem}.lora_B.weight")
        effective[name] = value if down is None or up is None else value + 2.0 * (up @ down)
    return effective


def _forward(weights: Weights, tokens: torch.Tensor, places: torch.Tensor, shape: Any) -> torch.Tensor:
    hidden = weights["model.embed_tokens.weight"][tokens]
    for number in range(shape.layers):
        layer = f"model.layers.{number}."
        normed = _norm(hidden, weights[layer + "input_layernorm.weight"])
        hidden = hidden + _attention(weights, layer + "self_attn.", normed, places, shape)
        normed = _norm(hidden, weights[layer + "post_attention_layernorm.weight"])
        gate = functional.silu(normed @ weights[layer + "mlp.gate_proj.weight"].T)
        up = normed @ weights[layer + "mlp.up_proj.weight"].T
        hidden = hidden + (gate * up) @ weights[layer + "mlp.down_proj.weight"].T
    return _norm(hidden, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


def _norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)


def _attention(weights: Weights, prefix: str, hidden: torch.Tensor, places: torch.Tensor, shape: Any) -> torch.Tensor:
    def heads(name: str, count: int) -> torch.Tensor:
        projected = hidden @ weights[f"{prefix}{name}.weight"].T + weights[f"{prefix}{name}.bias"]
        return projected.view(len(hidden), count, shape.head_dim).transpose(0, 1)

    query, key = _rotate(heads("q_proj", shape.heads), places), _rotate(heads("k_proj", shape.kv_heads), places)
    value = heads("v_proj", shape.kv_heads)
    group = shape.heads // shape.kv_heads  # query head h reads key-value head h // group
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = query @ key.transpose(1, 2) / math.sqrt(shape.head_dim)
    later = torch.ones(len(hidden), len(hidden), dtype=torch.bool, device=hidden.device).triu(1)
    mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ value
    return mixed.transpose(0, 1).reshape(len(hidden), -1) @ weights[prefix + "o_proj.weight"].T


def _rotate(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, halves rotated against each other (https://arxiv.org/abs/2104.09864)."""
    dim = states.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=places.device) / dim)
    angles = places.double()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = states.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
