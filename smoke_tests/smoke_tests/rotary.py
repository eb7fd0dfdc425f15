"""Triton for itself: a small kernel of our own, with forward and backward, against torch.

Triton builds a launcher with a C compiler, ``Python.h`` and ``libcuda`` when the first kernel runs; an image that lacks
one of them passes every import and fails here. The kernel is rotary position embedding, halves rotated against
each other (https://arxiv.org/abs/2104.09864); its backward is the same rotation the other way round.
"""

from __future__ import annotations

from typing import Any

import torch

from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.training import device_here

BOUNDS = {"float32": 1e-6, "bfloat16": 4e-3}  # one rounding each way: 2**-24 and 2**-9, and a margin of two


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Rotate forward and backward and compare both with torch in fp64."""
    if device_here().type != "cuda":
        raise NotRun("a Triton kernel needs a GPU")
    from smoke_tests.rotary_kernel import Rotary

    torch.manual_seed(0)
    report["errors"] = {}
    for name, bound in BOUNDS.items():
        states = torch.randn(3, 129, 4, 64, device="cuda", dtype=getattr(torch, name), requires_grad=True)
        seed = torch.randn_like(states)
        angles = torch.rand(129, 32, device="cuda") * 6.3
        rotated = Rotary.apply(states, angles.cos(), angles.sin())
        rotated.backward(seed)
        exact = rotate(states.detach().double(), angles.double())
        exact_gradient = rotate(seed.double(), -angles.double())
        worst = max(distance(rotated, exact), distance(states.grad, exact_gradient))
        report["errors"][name] = worst
        if not worst <= bound:
            raise Failed(f"{check['detail']} in {name} is {worst:.1e} from torch, {bound:.0e} is allowed")


def rotate(states: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """The same in plain torch; states are (batch, length, heads, dim), angles (length, dim / 2)."""
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
    first, second = states.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def distance(found: Any, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||."""
    return ((found.double() - expected).norm() / expected.norm()).item()
