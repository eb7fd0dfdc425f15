"""The attention settings, and the kernels by which each is recognised in a profile.

Kernel names were read off profiles of an H200 (torch 2.11.0+cu130; evidence/ holds them) and off the sources:
torch prefixes its own build of flash-attn 2 with ``pytorch_``; xformers' kernels are named
``fmha_cutlassF/B``; cuDNN names what it generates ``cudnn_generated_...sdpa...``; Inductor names a template
kernel ``triton_tem_...``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """The kernels of one implementation of attention, as patterns over a profile's names.

    ``operator`` matches torch operators (all there is on a CPU); ``forward`` and ``backward`` match GPU
    kernels. An implementation made of ordinary matrix products has no kernels of its own: those two are None
    then.
    """

    name: str
    operator: str | None = None
    forward: str | None = None
    backward: str | None = None

    def matches(self, name: str) -> bool:
        """Whether a name in a profile belongs to this family."""
        return any(p is not None and re.search(p, name) for p in (self.operator, self.forward, self.backward))


FAMILIES = {
    family.name: family
    for family in (
        Family("torch-math", operator=r"^aten::_scaled_dot_product_attention_math"),
        Family("torch-cpu-flash", operator=r"^aten::_scaled_dot_product_flash_attention_for_cpu"),
        Family(
            "torch-flash",
            operator=r"^aten::_scaled_dot_product_flash_attention(_backward)?$",
            forward=r"pytorch_flash::flash_fwd",
            backward=r"pytorch_flash::flash_bwd",
        ),
        Family(
            "torch-efficient",
            operator=r"^aten::_scaled_dot_product_efficient_attention(_backward)?$",
            forward=r"fmha_cutlassF|PyTorchMemEffAttention::AttentionKernel",
            backward=r"fmha_cutlassB|PyTorchMemEffAttention::AttentionBackwardKernel",
        ),
        Family(
            "cudnn",
            operator=r"^aten::_scaled_dot_product_cudnn_attention(_backward)?$",
            forward=r"cudnn_generated\S*sdpa\S*fprop",
            backward=r"cudnn_generated\S*sdpa\S*bprop",
        ),
        Family("flash-attn-2", forward=r"(?<!\w)flash::flash_fwd_", backward=r"(?<!\w)flash::flash_bwd_"),
        Family("flash-attn-3", forward=r"flash::FlashAttnFwdSm\d+", backward=r"flash::FlashAttnBwdSm\d+"),
        Family("flash-attn-4", forward=r"flash_?attn_?cute_?flash_fwd", backward=r"flash_?attn_?cute_?flash_bwd"),
        Family("flex", forward=r"^triton_tem_fused", backward=r"^triton_tem_fused\w*backward"),
    )
}

SDPA_FAMILIES = ("torch-math", "torch-cpu-flash", "torch-flash", "torch-efficient", "cudnn")


@dataclass(frozen=True)
class Setting:
    """One attention setting: what transformers is asked for, and which kernels may answer."""

    name: str
    implementation: str  # transformers' attn_implementation
    families: tuple[str, ...]  # at least one must be in the profile, no other may be
    sdpa_backend: str | None = None  # torch.nn.attention.SDPBackend to force
    package: str | None = None  # the distribution that brings the kernels
    module: str | None = None  # what that distribution is imported as


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("eager", "eager", ()),
        Setting("sdpa", "sdpa", SDPA_FAMILIES),
        Setting("sdpa-math", "sdpa", ("torch-math",), "MATH"),
        Setting("sdpa-flash", "sdpa", ("torch-flash", "torch-cpu-flash"), "FLASH_ATTENTION"),
        Setting("sdpa-efficient", "sdpa", ("torch-efficient",), "EFFICIENT_ATTENTION"),
        Setting("sdpa-cudnn", "sdpa", ("cudnn",), "CUDNN_ATTENTION"),
        Setting("flex", "flex_attention", ("flex",)),
        Setting("fa2", "flash_attention_2", ("flash-attn-2",), None, "flash-attn", "flash_attn"),
        Setting("fa3", "flash_attention_3", ("flash-attn-3",), None, "flash-attn-3", "flash_attn_interface"),
        Setting("fa4", "flash_attention_4", ("flash-attn-4",), None, "flash-attn-4", "flash_attn.cute"),
    )
}

FLASH = ("fa2", "fa3", "fa4")
SDPA = ("sdpa", "sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn")


def families_in(names: list[str]) -> dict[str, list[str]]:
    """The attention families whose names are in a profile, each with those names."""
    seen = {}
    for family in FAMILIES.values():
        own = sorted({name for name in names if family.matches(name)})
        if own:
            seen[family.name] = own
    return seen


def kernel_fault(setting: Setting, names: list[str], *, on_gpu: bool) -> str | None:
    """Say why a profile does not prove that the setting's own kernels ran, or None if it does."""
    seen = families_in(names)
    foreign = sorted(set(seen) - set(setting.families))
    if foreign:
        return f"{setting.name} was asked for and {', '.join(foreign)} ran: {seen[foreign[0]][0]}"
    if not setting.families:
        return None
    if not seen:
        return f"{setting.name} was asked for and no kernel of {', '.join(setting.families)} is in the profile"
    if on_gpu:
        for family in (FAMILIES[name] for name in seen):
            for what, pattern in (("forward", family.forward), ("backward", family.backward)):
                if pattern is not None and not any(re.search(pattern, name) for name in names):
                    return f"{family.name}: no {what} kernel is in the profile, only {seen[family.name]}"
    return None
