"""Why each kernel of attention refused its inputs, as torch and TransformerEngine warn before none is left. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.message_causes import shorten_text
from knowngood.failures.names.name_situation import advise

_HEAD = lazy_pattern(
    r"(?P<kernel>Flash attention|Memory efficient|cuDNN attention|CuDNN attention) kernel not used because:"
)
_REASON = lazy_pattern(
    r"(?P<text>(?:(?:Flash|Mem(?:ory)? Efficient|Mem efficient|Efficient|cuDNN|CuDNN) ?(?:[Aa]ttention|MHA)|"
    r"Both fused kernels|All fused kernels"
    r"|Expected query, key and value|For dense inputs?, both|The runtime disabled)[^\n]{5,240})"
)
_NO_REASON = ("kernel not used because", "defaults to a non-deterministic")
_DISABLED = "has been runtime disabled"
_TE = lazy_pattern(r"Disabling (?P<kernel>\w+(?: \d)?) (?P<why>(?:as|for|due to|because)[^\n]{3,200})")
_SHOWN = 160
_REMEDIES: Mapping[re.Pattern[str], str] = {
    lazy_pattern(
        r"attn_mask"
    ): "No attn_mask for the flash kernel: is_causal=True, or SDPBackend.EFFICIENT_ATTENTION, which takes a mask",
    lazy_pattern(r"gpu architectures|Ampere"): (
        "On this GPU another kernel: SDPBackend.EFFICIENT_ATTENTION or MATH; flash and cuDNN want the newer GPU "
        "that the warning names"
    ),
    lazy_pattern(r"dtype"): "fp16 or bf16 inputs (torch.autocast, model.to(torch.bfloat16)): flash takes no float32",
    lazy_pattern(
        r"head_dim|last dimension|head dimension"
    ): "A head size that the kernel takes (a multiple of 8, up to 256), or SDPBackend.MATH for this layer",
    lazy_pattern(
        r"num_heads|batch_size"
    ): "Repeat keys and values to the number of query heads, or enable_gqa=True in newer torch",
    lazy_pattern(r"4 dimensional"): "Inputs of four dimensions (batch, heads, length, head size)",
}


def describe_refusals(incident: Incident, error: LastError) -> Incident | None:
    """Which kernels of torch's SDPA refused, and why; `None` without their warnings."""
    text = error.log_end.decode("utf-8", "replace")
    reasons = dict.fromkeys(
        shorten_text(match["text"].strip().rstrip("."), _SHOWN)
        for match in _REASON.finditer(text)
        if not any(words in match["text"] for words in _NO_REASON)
    )
    stated = [reason for reason in reasons if _DISABLED not in reason]
    if not stated:
        return None
    fixes = [fix for pattern, fix in _REMEDIES.items() if any(pattern.search(reason) for reason in stated)]
    return replace(
        incident,
        title=f"No kernel of SDPA that is allowed takes these inputs: {stated[0]}",
        because=(
            "The warnings before the error say why each kernel refused: "
            f"{'; '.join(stated[:3])}. The others were switched off by sdpa_kernel or by the program."
        ),
        fix=(
            *(advise(fix) for fix in fixes[:3]),
            advise("Allow SDPBackend.MATH (and EFFICIENT_ATTENTION) besides, at the price of speed and memory"),
        ),
    )


def describe_disabled_backends(incident: Incident, error: LastError) -> Incident | None:
    """Which backends TransformerEngine left out for these inputs, and why; `None` without its lines."""
    text = error.log_end.decode("utf-8", "replace")
    reasons = dict.fromkeys(f"{match['kernel']} {match['why'].strip().rstrip('.')}" for match in _TE.finditer(text))
    if not reasons:
        return None
    shown = "; ".join(shorten_text(reason, _SHOWN) for reason in list(reasons)[:4])
    return replace(incident, because=f"{incident.because} Here it left out: {shown}.")
