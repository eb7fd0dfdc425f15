"""Attention by formulas of our own, from a model's configuration alone: what eager attention itself is held to.

Given query, key and value as a model hands them to its attention function (after the rotary embedding), the output
follows from the configuration: the scale of the scores, their soft-cap, the window or chunk of the layer, the sinks,
the sharing of key-value heads, and which places belong to one sequence. Nothing that the module passes along (scale,
window, mask) is used. Sources: the models' papers and cards as cited beside each formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

KNOWN_TYPES = (
    *("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "mixtral", "gemma2", "gemma3_text", "phi3", "gpt_oss"),
    *("deepseek_v3", "granite", "olmo2", "qwen2_vl_text", "qwen3_next", "falcon_h1", "qwen2_moe", "olmo", "olmo3"),
    *("smollm3", "ministral", "granitemoe", "granitemoehybrid", "qwen3_vl_text", "glm4", "gemma", "starcoder2"),
)
"""The model types whose attention these formulas are written for; of another type a difference proves nothing."""

AGREES = 1e-9
"""How far eager attention in fp64 may be from the formulas; it is 0 where the operations are the same."""


@dataclass(frozen=True)
class AttentionRule:
    """How one layer attends."""

    scale: float
    softcap: float | None = None
    window: int | None = None
    chunk: int | None = None
    chunks_of_row: bool = False
    """Whether chunks are counted from the start of the row, and not of each sequence in it: no model means that."""
    sinks: torch.Tensor | None = None


def rule_of(config: Any, module: Any) -> AttentionRule:
    """Read the rule of a layer off the configuration; sinks are parameters, and come from the module."""
    if config.to_dict().get("per_layer_config"):  # the layers' heads differ in width (Gemma 4)
        config = config.per_layer_config[module.layer_idx]
    kinds = getattr(config, "layer_types", None)
    kind = kinds[module.layer_idx] if kinds else None
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    if kind is not None:
        window = window if kind in ("sliding_attention", "hybrid_sliding") else None
        chunk = chunk if kind == "chunked_attention" else None
    elif getattr(config, "use_sliding_window", True) is False:
        window = None
    return AttentionRule(
        scale=_scale(config),
        softcap=getattr(config, "attn_logit_softcapping", None),
        window=window,
        chunk=chunk,
        sinks=getattr(module, "sinks", None),
    )


def _scale(config: Any) -> float:
    multiplier = getattr(config, "attention_multiplier", None)
    if multiplier is not None:  # Granite
        return float(multiplier)
    scalar = getattr(config, "query_pre_attn_scalar", None)
    if scalar is not None:  # Gemma 2, https://arxiv.org/abs/2408.00118
        return float(scalar) ** -0.5
    unrotated = getattr(config, "qk_nope_head_dim", None)
    if unrotated is not None:  # MLA: both parts of a head count, https://arxiv.org/abs/2405.04434
        return (unrotated + config.qk_rope_head_dim) ** -0.5 * _yarn_factor(config) ** 2
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return float(width) ** -0.5


def _yarn_factor(config: Any) -> float:
    """YaRN's temperature, which DeepSeek applies to the scores, https://arxiv.org/abs/2309.00071."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    factor, slope = rope.get("factor", 1.0), rope.get("mscale_all_dim", 0)
    return 0.1 * slope * math.log(factor) + 1.0 if slope and factor > 1 else 1.0


def allowed_places(owners: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
    """Rows x places x places: whether a place reads another of its own sequence, itself and up to the window before."""
    place = torch.arange(owners.shape[1], device=owners.device)
    back = place[:, None] - place[None, :]
    allowed = (owners[:, :, None] == owners[:, None, :]) & (owners >= 0)[:, :, None] & (back >= 0)
    if rule.window is not None:
        allowed &= back < rule.window
    if rule.chunk is not None:
        start = (place.expand_as(owners) if rule.chunks_of_row else _position_in_sequence(owners)) // rule.chunk
        allowed &= start[:, :, None] == start[:, None, :]
    return allowed


def _position_in_sequence(owners: torch.Tensor) -> torch.Tensor:
    place = torch.arange(owners.shape[1], device=owners.device).expand_as(owners)
    first = torch.ones_like(owners, dtype=torch.bool)
    first[:, 1:] = owners[:, 1:] != owners[:, :-1]
    return place - torch.where(first, place, 0).cummax(-1).values


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule, allowed: torch.Tensor
) -> torch.Tensor:
    """Attention of rows x heads x places x width; the output is rows x places x heads x width. Padding reads zero."""
    group = query.shape[1] // key.shape[1]  # query head h reads key-value head h // group
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~allowed[:, None], -math.inf)
    if rule.sinks is not None:  # a score more in the denominator, https://arxiv.org/abs/2309.17453
        sinks = rule.sinks.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    weights = weights.masked_fill(~allowed[:, None].any(-1, keepdim=True), 0.0)
    return torch.einsum("bhqk,bhkd->bqhd", weights, value)
