"""TransformerEngine's attention in Qwen2, and whether its context parallelism can call this flash-attn.

``context-parallel-call`` follows the source of TransformerEngine's context-parallel functions (``following.py``) to
their calls of flash-attn's private functions, and holds each against the signature in flash-attn's source: no GPU and
no second one is needed, nothing is imported. ``attention`` trains the tiny Qwen2 through DotProductAttention.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import Any

from smoke_tests.following import Anything, Walk, stub
from smoke_tests.outcomes import Failed, NotRun

INTERFACE = "flash_attn.flash_attn_interface"
# FlashAttention 2 it is, and not one of the other ways.
OTHERS = ("use_fused_attention", "use_flash_attn_3", "_use_flash_attn_3", "use_flash_attn_4", "fp8")
FORMATS = {"bshd": "padded", "thd": "packed"}


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Run the check that is asked for."""
    {"context-parallel-call": context_parallel_call, "attention": attention}[check["layout"]](report)


def context_parallel_call(report: dict[str, Any]) -> None:
    """Every call of flash-attn by TransformerEngine's context parallelism fits flash-attn's signature."""
    if importlib.util.find_spec("flash_attn") is None:
        raise NotRun("flash-attn is not installed")
    version = importlib.metadata.version("flash-attn")
    interface = _folder("flash_attn") / "flash_attn_interface.py"
    calls, wrong = bound(_folder("transformer_engine") / "pytorch", interface, version)
    report["figures"] = {"flash-attn": version, "calls": calls}
    if wrong:
        raise Failed(f"with flash-attn {version}: {'; '.join(wrong)}")


def bound(engine: Path, interface: Path, version: str) -> tuple[dict[str, int], list[str]]:
    """How often each function of flash-attn is called, and what does not fit, or is not called at all."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(engine.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items() if "flash_attn" in text}
    calls: dict[str, int] = {}
    wrong: list[str] = []
    for layout, told in FORMATS.items():
        found = _called(trees, interface, version, layout)
        for function, where, error in found:
            calls[function] = calls.get(function, 0) + 1
            if error:
                wrong.append(f"{where}: {error}")
        lacking = {"forward", "backward"} - {function.rpartition("_")[2] for function, _, _ in found}
        wrong += [f"no {way} call is found under {told} sequences" for way in sorted(lacking)]
    return calls, list(dict.fromkeys(wrong))


def _called(
    trees: dict[Path, ast.Module], interface: Path, version: str, layout: str
) -> list[tuple[str, str, str | None]]:
    """(function of flash-attn, where it is called, what Python says) of each call that the autograd functions make."""
    from packaging.version import Version

    found: list[tuple[str, str, str | None]] = []
    formats = dict.fromkeys(("qkv_format", "dqkv_format", "o_format"), layout)
    given = {**dict.fromkeys(OTHERS, False), **formats, **_flags(trees, Version(version))}
    names: dict[str, Any] = {"_flash_attn_version": Version(version), "PkgVersion": Version}
    place: list[str] = []
    for function in ast.parse(interface.read_text(encoding="utf-8")).body:
        if isinstance(function, ast.FunctionDef) and function.name.startswith("_flash_attn_"):
            names[function.name] = _watched(function, found, place, Anything(given))
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and node.module == INTERFACE:
            names |= {alias.asname: names[alias.name] for alias in node.names if alias.asname and alias.name in names}
    for tree in trees.values():
        walk = Walk(tree, given, names)
        for group in tree.body:
            if not isinstance(group, ast.ClassDef) or not group.name.startswith("AttnFuncWithCP"):
                continue
            for method in group.body:
                if isinstance(method, ast.FunctionDef) and method.name in ("forward", "backward"):
                    place[:] = [f"{group.name}.{method.name}"]
                    walk.function(method, {})
    return found


def _watched(function: ast.FunctionDef, found: list[Any], place: list[str], result: Anything) -> Any:
    fits = stub(function)

    def call(*positional: Any, **named: Any) -> Anything:
        error = None
        try:
            fits(*positional, **named)
        except TypeError as said:
            error = f"TypeError: {said}"
        found.append((function.name, place[0], error))
        return result

    return call


def _flags(trees: dict[Path, ast.Module], version: Any) -> dict[str, bool]:
    """The names that TransformerEngine gives comparisons of flash-attn's version, `v2_6_0_plus`, with their values."""
    flags: dict[str, bool] = {}
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Compare):
            left, names = _last(node.value.left), {"_flash_attn_version": version, "version": version}
            if left in names and _last(node.targets[0]) not in names and isinstance(node.value.ops[0], ast.GtE):
                least = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
                if len(least) == 1 and isinstance(least[0], str):
                    flags[_last(node.targets[0])] = version >= type(version)(least[0])
    return flags


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)  # of a top-level package: nothing is imported
    if spec is None or not spec.submodule_search_locations:
        raise NotRun(f"{package} cannot be imported")
    return Path(next(iter(spec.submodule_search_locations)))


def attention(report: dict[str, Any]) -> None:
    """The tiny Qwen2 with DotProductAttention for its attention: kernels, and every step of a training."""
    from smoke_tests import profiling, training
    from smoke_tests.precision import PRECISIONS
    from smoke_tests.settings import Setting, kernel_fault

    device = training.device_here()
    if device.type != "cuda":
        raise NotRun("no GPU: TransformerEngine's attention has no kernels for a CPU")
    flash = importlib.util.find_spec("flash_attn_2_cuda") is not None
    if flash:  # on a Hopper it would take cuDNN's
        os.environ |= {"NVTE_FLASH_ATTN": "1", "NVTE_FUSED_ATTN": "0", "NVTE_UNFUSED_ATTN": "0"}
    setting = Setting("transformer-engine", _registered(), ("flash-attn-2",) if flash else ("cudnn",))
    precision = PRECISIONS["bf16-pure"]
    trainee = training.Trainee(setting, precision, "dense", "full", device)
    report["resolved"] = trainee.resolved()
    with profiling.watched(device) as names:
        first = trainee.forward_backward()
    report["kernels"] = profiling.attention_names(names)
    if fault := kernel_fault(setting, names, on_gpu=True):
        raise Failed(f"kernel-swapped: {fault}")
    report["errors"] = trainee.errors(first)
    training.demand_right(trainee, first, report["errors"])
    training.follow(trainee, first, report)
    training.demand_learning(report["losses"])


def _registered() -> str:
    """The name under which transformers has DotProductAttention; one of it a layer, made when the layer first runs."""
    try:
        from transformers import AttentionInterface
    except ImportError as error:
        raise NotRun(f"this transformers takes no attention from outside: {error}") from None
    from transformer_engine.pytorch import DotProductAttention

    layers: dict[int, Any] = {}

    def forward(  # noqa: PLR0913, PLR0917 - they are transformers'
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float,
        dropout: float = 0.0,
        **_others: Any,
    ) -> tuple[Any, None]:
        if attention_mask is not None or dropout:
            raise Failed(f"attention was to be causal and no more: dropout {dropout}, a mask {attention_mask}")
        if module.layer_idx not in layers:
            layers[module.layer_idx] = DotProductAttention(
                query.shape[1], query.shape[-1], num_gqa_groups=key.shape[1], softmax_scale=scaling,
                attention_dropout=0.0, qkv_format="bshd", attn_mask_type="causal",
            )  # fmt: skip
        rows = (states.transpose(1, 2).contiguous() for states in (query, key, value))
        mixed = layers[module.layer_idx](*rows)
        return mixed.unflatten(-1, (query.shape[1], query.shape[-1])), None

    AttentionInterface.register("transformer_engine", forward)
    return "transformer_engine"
