"""What flash-attn 2 ships beside attention: present, compiled or absent; and what can run gives the right numbers.

The wheels hold the Triton parts (rotary, layer_norm with rms_norm, cross_entropy); the CUDA parts (fused_dense_lib,
dropout_layer_norm, xentropy_cuda_lib) are built from csrc/ only by those who ask for them.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch.nn import functional

from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.rotary import distance, rotate
from smoke_tests.training import device_here

MODULES = (
    "flash_attn.bert_padding",
    "flash_attn.layers.rotary",
    "flash_attn.ops.triton.layer_norm",
    "flash_attn.ops.triton.cross_entropy",
    "flash_attn.ops.rms_norm",
    "flash_attn.ops.layer_norm",
    "flash_attn.ops.fused_dense",
    "flash_attn.losses.cross_entropy",
    "flash_attn_2_cuda",
    "fused_dense_lib",
    "dropout_layer_norm",
    "xentropy_cuda_lib",
    "rotary_emb",
)
BOUND = 8e-3  # bf16 in and out: two roundings of 2**-9


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Take stock, or run one of the parts."""
    if check["detail"] == "inventory":
        report["figures"] = {name: state(name) for name in MODULES}
        if all(found == "absent" for found in report["figures"].values()):
            raise NotRun("flash-attn 2 is not installed")
        return
    module, part = PARTS[check["detail"]]
    if state(module) == "absent":
        raise NotRun(f"{module} is not installed")
    if device_here().type != "cuda":
        raise NotRun("flash-attn's kernels need a GPU")
    torch.manual_seed(0)
    worst = report["errors"] = part(importlib.import_module(module))
    if not max(worst.values()) <= BOUND:
        raise Failed(f"{module} is {worst} from torch, {BOUND:.0e} is allowed")


def state(module: str) -> str:
    """``absent``, ``compiled`` (an extension module), ``importable``, or the error that importing it raises."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        return "absent"
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
        return f"{type(error).__name__}: {error}"[:300]
    return "compiled" if spec.origin.endswith(".so") else "importable"


def _rotary(module: Any) -> dict[str, float]:
    states = _random(2, 65, 4, 64)
    angles = torch.rand(65, 32, device="cuda") * 6.3
    out = module.apply_rotary_emb(states, angles.cos().bfloat16(), angles.sin().bfloat16())
    return {"forward": distance(out, rotate(states.detach().double(), angles.double()))}


def _rms_norm(module: Any) -> dict[str, float]:
    states, weight = _random(33, 256), _random(256)
    out = module.rms_norm_fn(states, weight, None, eps=1e-6)
    out.backward(torch.ones_like(out))
    exact, w = states.detach().double().requires_grad_(), weight.detach().double()
    expected = w * exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)
    expected.sum().backward()
    return {"forward": distance(out, expected.detach()), "backward": distance(states.grad, exact.grad)}


def _cross_entropy(module: Any) -> dict[str, float]:
    logits = _random(33, 128)
    labels = torch.arange(33, device="cuda")
    losses, _ = module.cross_entropy_loss(logits, labels)
    losses.sum().backward()
    exact = logits.detach().double().requires_grad_()
    expected = functional.cross_entropy(exact, labels, reduction="none")
    expected.sum().backward()
    return {"forward": distance(losses, expected.detach()), "backward": distance(logits.grad, exact.grad)}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


PARTS = {
    "rotary": ("flash_attn.layers.rotary", _rotary),
    "rms-norm": ("flash_attn.ops.triton.layer_norm", _rms_norm),
    "cross-entropy": ("flash_attn.ops.triton.cross_entropy", _cross_entropy),
}
