"""Faults put into the model on purpose: each must fail the comparison with the reference, or the bounds are too wide.

They are made at the module's edges (hooks on the projections around attention, the masks that go in), so that the
same fault can be put under every setting, whichever kernel runs in between.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from smoke_tests import model
from smoke_tests.outcomes import Failed
from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import FLASH, SETTINGS
from smoke_tests.training import Trainee, backend, device_here, within

SHAPE = model.TINY


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Pass if the fault is noticed."""
    setting, precision = SETTINGS[check["setting"]], PRECISIONS[check["dtype"]]
    with backend(setting):
        trainee = Trainee(setting, precision, check["layout"], "full", device_here())
        MUTANTS[check["detail"]](trainee)
        errors = report["errors"] = trainee.errors(trainee.forward_backward())
    report["figures"] = {
        "loss_over_bound": errors["loss"] / precision.loss,
        "gradient_over_bound": errors["gradient"] / precision.gradient,
    }
    if within(precision, errors):
        raise Failed(f"the fault went unnoticed: {report['figures']}")


def drop_scale(trainee: Trainee) -> None:
    """Softmax over q.k instead of q.k / sqrt(head_dim)."""
    _scale_queries(trainee, math.sqrt(SHAPE.head_dim))


def bend_scale(trainee: Trainee) -> None:
    """A softmax scale that is off by a tenth, as 1 / sqrt(head_dim padded to the next kernel size) would be."""
    _scale_queries(trainee, 1.1)


def swap_heads(trainee: Trainee) -> None:
    """The outputs of two heads change places."""
    for attention in _attentions(trainee):
        attention.o_proj.register_forward_pre_hook(lambda _, args: (_permuted(args[0], [1, 0, 2, 3]),))


def tile_groups(trainee: Trainee) -> None:
    """Query head h reads key-value head h % kv_heads instead of h // group: tile for repeat_interleave."""
    for attention in _attentions(trainee):
        attention.q_proj.register_forward_hook(lambda _, __, out: _permuted(out, [0, 2, 1, 3]))
        attention.o_proj.register_forward_pre_hook(lambda _, args: (_permuted(args[0], [0, 2, 1, 3]),))


def drop_causality(trainee: Trainee) -> None:
    """Every token sees every other."""
    if trainee.setting.name in FLASH:
        for attention in _attentions(trainee):
            attention.is_causal = False
    else:
        _mask(trainee, diagonal=1 << 20)


def peek(trainee: Trainee) -> None:
    """The causal mask is off by one: every token sees the one that it must predict."""
    _mask(trainee, diagonal=2)


def ignore_padding(trainee: Trainee) -> None:
    """Padding is attended to."""
    del trainee.batch.inputs["attention_mask"]


def ignore_seams(trainee: Trainee) -> None:
    """Packed sequences read each other."""
    tokens = trainee.batch.inputs["input_ids"]
    trainee.batch.inputs = {
        "input_ids": tokens,
        "position_ids": torch.arange(tokens.shape[1], device=tokens.device)[None],
    }


MUTANTS = {
    "scale-dropped": drop_scale,
    "scale-bent": bend_scale,
    "heads-swapped": swap_heads,
    "groups-tiled": tile_groups,
    "causality-dropped": drop_causality,
    "causality-off-by-one": peek,
    "padding-ignored": ignore_padding,
    "seams-ignored": ignore_seams,
}


def _attentions(trainee: Trainee) -> list[Any]:
    return [layer.self_attn for layer in trainee.model.model.layers]


def _scale_queries(trainee: Trainee, factor: float) -> None:
    for attention in _attentions(trainee):
        attention.q_proj.register_forward_hook(lambda _, __, out: out * factor)


def _permuted(states: torch.Tensor, order: list[int]) -> torch.Tensor:
    heads = states.unflatten(-1, (SHAPE.heads, SHAPE.head_dim))
    return heads[..., order, :].flatten(-2)


def _mask(trainee: Trainee, diagonal: int) -> None:
    tokens, dtype = trainee.batch.inputs["input_ids"], trainee.autocast or trainee.weights
    hidden = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).triu(diagonal)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=tokens.device)
    mask = mask.masked_fill(hidden, torch.finfo(dtype).min)
    trainee.batch.inputs["attention_mask"] = mask[None, None].expand(tokens.shape[0], 1, -1, -1)
