"""Faults put into the model on purpose: each must fail the comparison with the reference, or the bounds are too wide.

Those of attention are made at the module's edges (hooks on the projections around it, the masks that go in), so that
the same fault can be put under every setting and in every transformers, whichever kernel runs in between. Those of
optimizers and schedules are put into torch (``library_faults``), and a whole short training must show them.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch

from smoke_tests import library_faults, model
from smoke_tests.library_faults import put
from smoke_tests.outcomes import demand_noticed
from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import FLASH, SETTINGS
from smoke_tests.training import Trainee, backend, demand_right, device_here, follow

SHAPE = model.TINY


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Pass if the fault is noticed for its own reason."""
    setting, precision = SETTINGS[check["setting"]], PRECISIONS[check["dtype"]]
    own = {fault.name: fault for fault in library_faults.OPTIMIZER}.get(check["detail"])

    def attempt() -> None:
        trainee = Trainee(setting, precision, check["layout"], "full", device_here())
        if own is None:
            MUTANTS[check["detail"]][0](trainee)
        first = trainee.forward_backward()
        errors = report["errors"] = trainee.errors(first)
        demand_right(trainee, first, errors)
        if own is not None:
            follow(trainee, first, report)

    with backend(setting), put(own) if own else contextlib.nullcontext():
        reason = own.reason if own else MUTANTS[check["detail"]][1]
        report["figures"] = {"noticed": demand_noticed(attempt, reason)}


def drop_scale(trainee: Trainee) -> None:
    """Softmax over q.k instead of q.k / sqrt(head_dim)."""
    _scale_queries(trainee, math.sqrt(SHAPE.head_dim))


def bend_scale(trainee: Trainee) -> None:
    """A softmax scale that is off by 3%."""
    _scale_queries(trainee, 1.03)


def shorten_query_gradient(trainee: Trainee) -> None:
    """The gradient of the queries comes back 5% short."""
    for attention in _attentions(trainee):
        attention.q_proj.register_forward_hook(lambda _, __, out: library_faults.scale_gradient(out, 0.95))


def shorten_value_gradient(trainee: Trainee) -> None:
    """The gradient of the values comes back 5% short."""
    for attention in _attentions(trainee):
        attention.v_proj.register_forward_hook(lambda _, __, out: library_faults.scale_gradient(out, 0.95))


def round_values(trainee: Trainee) -> None:
    """Values are rounded to fp8."""
    for attention in _attentions(trainee):
        attention.v_proj.register_forward_hook(lambda _, __, out: library_faults.rounded(out, "float8_e4m3fn"))


def blur_output(trainee: Trainee) -> None:
    """Noise of 2% in attention's output."""
    for attention in _attentions(trainee):
        attention.o_proj.register_forward_pre_hook(lambda _, args: (library_faults.blurred(args[0], 0.02),))


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


ANY_KIND, QUERY_OR_KEY = r"wrong-gradient: step 1: ", r"wrong-gradient: step 1: (.*, )?(query|key) weights"
MUTANTS = {
    "scale-dropped": (drop_scale, ANY_KIND),
    "scale-3-percent": (bend_scale, QUERY_OR_KEY),
    "query-gradient-5-percent": (shorten_query_gradient, r"wrong-gradient: step 1: query "),
    "value-gradient-5-percent": (shorten_value_gradient, r"wrong-gradient: step 1: value "),
    "value-fp8": (round_values, ANY_KIND),
    "noise-2-percent": (blur_output, ANY_KIND),
    "heads-swapped": (swap_heads, ANY_KIND),
    "groups-tiled": (tile_groups, ANY_KIND),
    "causality-dropped": (drop_causality, ANY_KIND),
    "causality-off-by-one": (peek, ANY_KIND),
    "padding-ignored": (ignore_padding, ANY_KIND),
    "seams-ignored": (ignore_seams, r"^leaks-across-seams"),
}
"""Each fault, and the only reason that counts as noticing it."""


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
