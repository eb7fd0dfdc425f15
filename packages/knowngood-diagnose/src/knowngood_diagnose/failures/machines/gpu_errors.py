"""Why a GPU cannot be used or has no kernel: the driver's number, whose kernel lacks code, what refused, no CUDA."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.log_versions import name_package
from knowngood_diagnose.failures.names.message_causes import shorten_text
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Fix, Incident

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood_diagnose.failures.logs.last_errors import LastError


_CALL = lazy_pattern(
    r"\b(?P<module>[a-z]\w*?_(?:cuda|ext|gpu|kernels?|C|backend)|_C|ops|flash_attn_gpu|fused_\w+|"
    r"selective_scan\w*|causal_conv1d\w*)\.\w+\("
)
_PLAIN = frozenset(
    ("torch", "transformers", "accelerate", "peft", "trl", "lightning", "pytorch_lightning", "diffusers")
)
"""Packages without kernels of their own: a line of theirs calls torch's."""


def describe_kernel_owner(incident: Incident, error: LastError) -> Incident | None:
    """Name the extension whose kernel was called; `None` where it was torch's, or where the log does not say."""
    if not error.frames or "is not compatible with the current PyTorch" in error.log_end.decode("utf-8", "replace"):
        return None
    frame = error.frames[-1]
    installed = frame.installed[:1]
    call = _CALL.search(frame.code)
    if not installed or installed[0] in _PLAIN or call is None:
        return None
    module = call["module"]
    owner = name_package(installed[0] if module in {"_C", "ops"} else module)
    return incident.tell("kernel-owner", owner=owner, short_file=frame.short_file, code=frame.code)


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
    return incident.tell("disabled-backends", shown=shown)


_MAC = lazy_pattern(r"(?:^|[\s\"'(=])/Users/\w|macosx[_-]\d|-darwin\.so|\barm64-apple|/opt/homebrew/")
_WINDOWS = lazy_pattern(r"\bWindowsPath\(|[A-Za-z]:\\[^\n\"']{1,200}\\bitsandbytes\\")
_NO_LIBRARY = lazy_pattern(r"libbitsandbytes_\w+\.so\b|\blibcudart\.so\b")
_FIRST_ON_WINDOWS = "0.43"
"""bitsandbytes' first release with libraries (.dll) for Windows: the wheels of 0.42.0 and 0.43.0."""


def is_mac(text: str) -> bool:
    """Whether the paths of a log are those of a Mac."""
    return bool(_MAC.search(text))


def describe_without_cuda(incident: Incident, error: LastError) -> Incident | None:
    """Say that a Mac has no CUDA; `None` for another machine."""
    if not is_mac(error.log_end.decode("utf-8", "replace")):
        return None
    return replace(
        incident,
        title=f"This is a Mac, which has no CUDA: {incident.title[:1].lower()}{incident.title[1:]}",
        because=(
            "The paths in the log (/Users, macosx) are those of a Mac. It has no NVIDIA GPU, so that what needs "
            "CUDA, such as quantization in 8 and 4 bits by older releases of bitsandbytes, cannot run there."
        ),
        fix=(
            advise(
                "Without it: device 'mps' (torch.backends.mps.is_available()) or 'cpu', no load_in_8bit or "
                "load_in_4bit, optim='adamw_torch'"
            ),
            advise("pip install --upgrade bitsandbytes: newer releases have wheels for macOS, with fewer functions"),
            advise("A machine with an NVIDIA GPU (a cloud's, Colab)"),
        ),
    )


def describe_bitsandbytes(incident: Incident, error: LastError) -> Incident | None:
    """Say that a bitsandbytes has nothing for this platform; `None` where the paths are those of Linux."""
    text = error.log_end.decode("utf-8", "replace")
    if not (_WINDOWS.search(text) and _NO_LIBRARY.search(text)):
        return describe_without_cuda(incident, error)
    return replace(
        incident,
        title=f"This bitsandbytes has no library for Windows: a release before {_FIRST_ON_WINDOWS} runs",
        because=(
            "It looks for files of Linux (.so) on Windows and finds none that it can load. Its wheels have libraries "
            f"for Windows (.dll) since {_FIRST_ON_WINDOWS}."
        ),
        fix=(
            Fix(change={"bitsandbytes": f">={_FIRST_ON_WINDOWS}"}, note="has libraries for Windows", cost="an upgrade"),
            advise("Linux, or WSL on the same machine, when an older release is wanted"),
        ),
    )
