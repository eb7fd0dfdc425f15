"""What flash-attn's C++ interface checks at run time, read from `flash_api.cpp` as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from knowngood.harvest.artefact import text

if TYPE_CHECKING:
    from knowngood.harvest.artefact import Artefact

_SOURCE = "csrc/flash_attn/flash_api.cpp"
_COMMENT = re.compile(r"//[^\n]*")
_GPU = re.compile(r"TORCH_CHECK\((is_\w+(?: \|\| is_\w+)*),\s*\"FlashAttention only supports (?:Ampere|Turing)")
_HEAD_DIM = re.compile(r"TORCH_CHECK\(head_size(?:_og)? <= (\d+)")
_BACKWARD = re.compile(r"\"FlashAttention backward for (.+?) requires A100")
_DTYPE = re.compile(r"q_dtype == torch::k(Float16|BFloat16)")
_DTYPES = {"Float16": "float16", "BFloat16": "bfloat16"}


def limits(artefact: Artefact) -> dict[str, Any]:
    """The facts that the checks state; those they do not are left out."""
    return checks(text(artefact, _SOURCE))


def checks(source: str) -> dict[str, Any]:
    """The same, of the source text."""
    code = _COMMENT.sub("", source)
    found: dict[str, Any] = {}
    gpus = _GPU.search(code)
    if gpus:
        found["newer_than_sm90"] = gpus[1].endswith("_min")
    head_dims = [int(number) for number in _HEAD_DIM.findall(code)]
    if head_dims:
        found["head_dim_maximum"] = min(head_dims)
    backward = _BACKWARD.search(code)
    found["backward_needs_sm80_or_sm90"] = backward[1] if backward else ""
    found["dtypes"] = sorted({_DTYPES[name] for name in _DTYPE.findall(code)})
    return found
