"""The paired measure: a kernel's own query, key, value and gradient, through attention that is right.

What a call of attention was given and what it returned, forward and backward, is compared with the formulas in fp64
on the same rounded numbers. What remains is the kernel's own error. Its size is bounded; and because rounding has no
direction, its *signed* share along a direction is bounded much more tightly: along the output and each gradient
themselves (a gradient that comes back 1 % short has a gain of -0.01), and along the change that a larger softmax
scale would make. Sums over layers' elements and over several batches average rounding away: one percent shows in
bf16, where the size of the error is itself more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from model_tests import attention_formulas as formulas
from model_tests.attention_seam import is_text_attention

PARTS = ("output", "query_gradient", "key_gradient", "value_gradient")
STEP = 1e-4  # of the logarithm of the scale, for the difference quotient


@dataclass
class AttentionCall:
    """One call of attention: what went in, what came out, and the gradients of both."""

    module: Any
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    output: torch.Tensor
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


def record_calls(calls: list[AttentionCall]) -> Any:
    """Return a wrapper for an attention function that appends each call of a text layer to ``calls``."""

    def wrap(function: Any) -> Any:
        def recorded(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
            if not is_text_attention(module) or not query.requires_grad:
                return function(module, query, key, value, *rest, **named)
            own = [states.view_as(states) for states in (query, key, value)]
            result = function(module, *own, *rest, **named)
            call = AttentionCall(module, (query.detach(), key.detach(), value.detach()), result[0].detach())
            for name, states in zip(("output", *PARTS[1:]), (result[0], *own)):
                states.register_hook(_keeper(call, name))
            calls.append(call)
            return result

        return recorded

    return wrap


def _keeper(call: AttentionCall, name: str) -> Any:
    def keep(gradient: torch.Tensor) -> None:
        call.gradients[name] = gradient.detach()

    return keep


@dataclass
class Share:
    """Sums from which a gain is made: the difference along a direction, and the squares of all three."""

    along: float = 0.0
    direction: float = 0.0
    difference: float = 0.0
    right: float = 0.0

    def add(self, difference: torch.Tensor, direction: torch.Tensor, right: torch.Tensor) -> None:
        """Add the elements of a call."""
        self.along += (difference * direction).sum().item()
        self.direction += direction.square().sum().item()
        self.difference += difference.square().sum().item()
        self.right += right.square().sum().item()

    @property
    def gain(self) -> float:
        """The signed share of the difference along the direction, relative to the direction; 0 is right."""
        return self.along / self.direction if self.direction else 0.0

    @property
    def size(self) -> float:
        """The size of the whole difference relative to what is right."""
        return (self.difference / self.right) ** 0.5 if self.right else 0.0


class PairedMeasure:
    """The shares of each layer, over the batches that were added."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.layers: dict[int, dict[str, Share]] = {}

    def add(self, calls: list[AttentionCall], owners: torch.Tensor) -> None:
        """Add the calls of a batch, after its backward pass."""
        for call in calls:
            if set(call.gradients) == set(PARTS):
                self._add_call(call, owners)

    def _add_call(self, call: AttentionCall, owners: torch.Tensor) -> None:
        rule = formulas.rule_of(self.config, call.module)
        if rule.sinks is not None:
            rule = with_changes(rule, sinks=rule.sinks.detach().double())
        allowed = formulas.allowed_places(owners, rule)
        real = (owners >= 0)[:, :, None, None]
        inputs = [states.double().requires_grad_() for states in call.inputs]
        right = formulas.attend(*inputs, rule, allowed)
        arriving = call.gradients["output"].double().reshape(right.shape) * real
        expected = torch.autograd.grad(right, inputs, arriving)
        with torch.no_grad():
            right = right.detach() * real
            steeper = formulas.attend(*inputs, with_changes(rule, scale=rule.scale * (1 + STEP)), allowed) * real
            output = call.output.double().reshape(right.shape) * real
            shares = self.layers.setdefault(call.module.layer_idx, {})
            shares.setdefault("scale", Share()).add(output - right, (steeper - right) / STEP, right)
            shares.setdefault("output", Share()).add(output - right, right, right)
            for name, gradient in zip(PARTS[1:], expected):
                own = call.gradients[name].double()
                where = real.transpose(1, 2)
                shares.setdefault(name, Share()).add((own - gradient) * where, gradient * where, gradient * where)

    def figures(self) -> dict[str, dict[str, float]]:
        """For each part the worst gain and the worst size over the layers."""
        names = ("scale", *PARTS) if self.layers else ()
        return {
            name: {
                "gain": max((layer[name].gain for layer in self.layers.values()), key=_magnitude),
                "size": max((layer[name].size for layer in self.layers.values()), key=_magnitude),
            }
            for name in names
        }


def _magnitude(value: float) -> float:
    return abs(value) if value == value else float("inf")  # noqa: PLR0124 - NaN is the worst


def with_changes(rule: formulas.AttentionRule, **changed: Any) -> formulas.AttentionRule:
    """A rule that differs in these fields."""
    return formulas.AttentionRule(**{**rule.__dict__, **changed})
