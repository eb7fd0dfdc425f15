"""The element type in which a kernel computes, read from its name. Pure.

A run in bf16 whose kernel computes in fp16 is another kernel than was asked for, however near its numbers are. The
patterns were read off the kernel names in evidence/: CUTLASS templates (torch's flash and memory-efficient kernels,
flash-attn 2 and 3) name their element, FlashAttention 4 names that of each tensor. cuDNN's names say ``wgmma_f16`` for
bf16 too, and Triton's say nothing: of those the type is not known.
"""

from __future__ import annotations

import re

SILENT_NAMES = r"cudnn_generated|^triton_"
HALF = (
    ("bf16", r"cutlass::bfloat16_t|_bf16_|tensorptrbf16|__nv_bfloat16"),
    ("fp16", r"cutlass::half_t|_f16_|tensorptrf16|__half\b"),
    ("fp8", r"cutlass::float_e[45]m[23]_t|tensorptrf8"),
)
SINGLE = r"_f32_|[<, ]float[,>]"
"""Accumulators are fp32 in every kernel, so this counts only where no smaller type is named."""


def element_type(name: str) -> str | None:
    """Return ``bf16``, ``fp16``, ``fp8`` or ``fp32`` from a kernel's name; None where it names none, or several."""
    if re.search(SILENT_NAMES, name):
        return None
    types = [kind for kind, pattern in HALF if re.search(pattern, name)]
    if types:
        return types[0] if len(types) == 1 else None
    return "fp32" if re.search(SINGLE, name) else None


def swapped_types(names: list[str], dtype: str) -> list[str]:
    """The kernels whose name says another half-precision type than the run's ``dtype``."""
    return [name for name in names if dtype in ("bf16", "fp16") and element_type(name) in {"bf16", "fp16"} - {dtype}]
