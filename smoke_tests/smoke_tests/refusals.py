"""Errors by which the libraries refuse what they cannot do, told apart from faults.

Only an error listed here makes a check ``refused`` or ``not-run``; every other error is a ``fail``. A row is
a pattern over "Type: message", the outcome, and what it means. Each was seen in a run (evidence/) or read in
the named source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """A known error: what it looks like, which outcome it is, why."""

    pattern: str
    outcome: str
    reason: str


KNOWN = (
    # transformers, PreTrainedModel._check_and_adjust_attn_implementation and its predecessors
    Refusal(
        r"Specified `attn_implementation=.*is not supported|`attn_implementation` .*not a valid",
        "not-run",
        "this transformers does not know the setting",
    ),
    Refusal(
        r"does not support an attention implementation through torch's flex_attention",
        "not-run",
        "this transformers has no FlexAttention for Qwen2",
    ),
    Refusal(
        r"ImportError: .*(seems to be not installed|doesn't seem to be installed|is not installed)",
        "not-run",
        "the kernels' package is not installed",
    ),
    Refusal(
        r"ImportError: .*PyTorch SDPA requirements in Transformers are not met",
        "refused",
        "this transformers wants a newer torch for SDPA",
    ),
    Refusal(
        r"(not available on CPU|not initialized on GPU and with no GPU|is not available\b.*(GPU|CUDA|cuda)"
        r"|requires? (a )?CUDA|Please make sure torch can access a CUDA device)",
        "refused",
        "flash-attn needs a GPU",
    ),
    Refusal(
        r"ImportError: .*Flash Attention \d(\.0)? is not available",
        "refused",
        "flash-attn is not usable here",
    ),
    Refusal(
        r"FlashAttention-? ?\d? only supports? (fp16|float16|Ampere|Hopper|sm)|only support fp16 and bf16"
        r"|FlashAttention only supports",
        "refused",
        "flash-attn has no kernel for this dtype or GPU",
    ),
    Refusal(
        r"AssertionError: inputs must be float16(,| or) bfloat16",
        "refused",
        "FlashAttention 4 has no kernel for this dtype",
    ),
    Refusal(
        r"TypeError: .*unexpected keyword argument 'cu_seq_lens_q'",
        "not-run",
        "this transformers takes no cumulative lengths (FlashAttentionKwargs)",
    ),
    # torch, aten/src/ATen/native/transformers: no backend left after sdpa_kernel([...]) and the constraints
    Refusal(
        r"RuntimeError: (No available kernel|No viable backend for scaled_dot_product_attention)",
        "refused",
        "the forced SDPA backend does not take this input",
    ),
    # torch, torch/_higher_order_ops/flex_attention.py and torch/nn/attention/flex_attention.py
    Refusal(
        r"FlexAttention does not support backward on CPU|flex_attention.*(only supported on|backward.*CPU)"
        r"|NotImplementedError: .*flex_attention|requires_grad.*CPU|CPU.*requires_grad",
        "refused",
        "FlexAttention has no backward on CPU",
    ),
)


def recognise(error: BaseException) -> Refusal | None:
    """The refusal that an error is, or None if it is a fault."""
    text = f"{type(error).__name__}: {error}"
    for refusal in KNOWN:
        if re.search(refusal.pattern, text, re.DOTALL):
            return refusal
    return None
