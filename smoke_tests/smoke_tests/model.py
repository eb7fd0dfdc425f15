"""The tiny Qwen2, the same weights in every version of transformers, on every device, under every setting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers

from smoke_tests import data

if TYPE_CHECKING:
    from smoke_tests.settings import Setting

SEED = 20240716


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. head_dim is hidden // heads, 64 in both: what every fused kernel takes."""

    hidden: int = 256
    intermediate: int = 512
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64


TINY = Shape()
FOR_SPEED = Shape(hidden=1024, intermediate=2816, layers=4, heads=16, kv_heads=4)


def build(setting: Setting, shape: Shape, dtype: torch.dtype, device: torch.device) -> Any:
    """Build the model as a user does: from a configuration, with ``attn_implementation``."""
    config = transformers.Qwen2Config(
        vocab_size=data.VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=setting.implementation, **{_dtype_argument(): dtype}
    )
    fill(model)
    return model.to(device=device, dtype=dtype)


def _dtype_argument() -> str:
    """``torch_dtype`` was renamed ``dtype`` in transformers 4.56."""
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def fill(model: torch.nn.Module, seed: int = 0) -> None:
    """Set every parameter from a seed and its own name, so that neither version nor order matters.

    The query and key weights are larger than a default initialisation makes them: the attention pattern is
    then far from uniform, and a lost softmax scale or a wrong mask changes the loss by much more than
    rounding does.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(SEED + (seed << 16) + sum(map(ord, name)))
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if name.endswith("norm.weight"):
                value = 1 + 0.1 * noise
            elif "embed_tokens" in name:
                value = noise
            elif name.endswith("bias"):
                value = 0.2 * noise
            else:
                sharper = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
                value = sharper * noise / math.sqrt(parameter.shape[-1])
            parameter.copy_(value)


def add_lora(model: Any) -> Any:
    """Wrap the projections of attention with low-rank adapters, none of them zero."""
    import peft

    torch.manual_seed(SEED)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_" in name:
                generator = torch.Generator().manual_seed(SEED + sum(map(ord, plain_name(name))))
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.copy_(0.5 * noise / math.sqrt(parameter.shape[-1]))
    return adapted


def plain_name(name: str) -> str:
    """A parameter's name without what peft wraps around it."""
    for wrapper in ("base_model.model.", ".base_layer", ".default"):
        name = name.replace(wrapper, "", 1)
    return name


def bound_function(model: Any) -> str:
    """The function or class that answers for attention in the built model, as a dotted name."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    attention = base.model.layers[0].self_attn
    described = f"{type(attention).__module__}.{type(attention).__qualname__}"
    try:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    except ImportError:  # before 4.48 each implementation was a class of its own
        return described
    function = dict(ALL_ATTENTION_FUNCTIONS.items()).get(base.config._attn_implementation)
    return f"{described} -> {function.__module__}.{function.__qualname__}" if function else described
