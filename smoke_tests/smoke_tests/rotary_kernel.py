"""The Triton kernel of rotary.py; apart from it because importing this needs triton."""

# no `from __future__ import annotations`: triton reads the annotation objects of a kernel's parameters
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def rotate_rows(states, cos, sin, out, length, heads, half: tl.constexpr):  # noqa: ANN001, ANN201, PLR0913, PLR0917
    """One program rotates one head of one token."""
    row = tl.program_id(0)
    place = (row // heads) % length
    column = tl.arange(0, half)
    start = row * 2 * half + column
    first = tl.load(states + start).to(tl.float32)
    second = tl.load(states + start + half).to(tl.float32)
    c = tl.load(cos + place * half + column)
    s = tl.load(sin + place * half + column)
    tl.store(out + start, (first * c - second * s).to(out.dtype.element_ty))
    tl.store(out + start + half, (second * c + first * s).to(out.dtype.element_ty))


def launch(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate (batch, length, heads, dim) states."""
    states = states.contiguous()
    batch, length, heads, dim = states.shape
    out = torch.empty_like(states)
    rotate_rows[(batch * length * heads,)](states, cos, sin, out, length, heads, dim // 2)
    return out


class Rotary(torch.autograd.Function):
    """Rotary position embedding with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate."""
        ctx.save_for_backward(cos, sin)
        return launch(states, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        """Rotate back."""
        cos, sin = ctx.saved_tensors
        return launch(gradient, cos, -sin), None, None
