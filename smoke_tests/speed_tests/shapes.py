"""The shapes of the models, the weights they get, and how many floating point operations a token takes.

Sizes were read off the wheels of torchtune 0.6.1 (``models/qwen2_5/_model_builders.py``) and torchtitan 0.3.0
(``models/qwen3/__init__.py``). One shape, which its name says, is the first layers of a model that is too large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers

from smoke_tests.model import _dtype_argument as dtype_argument

if TYPE_CHECKING:
    from smoke_tests.settings import Setting

_KEYS = ("vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size")
_SIZES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "tiny": ("qwen2", (512, 2, 4, 2, 64), {"intermediate_size": 128}),
    "qwen2.5-0.5b": ("qwen2", (151936, 24, 14, 2, 896), {"intermediate_size": 4864}),
    "qwen2.5-1.5b": ("qwen2", (151936, 28, 12, 2, 1536), {"intermediate_size": 8960}),
    "qwen2.5-7b": ("qwen2", (152064, 28, 28, 4, 3584), {"intermediate_size": 18944, "tie_word_embeddings": False}),
    "qwen3-4b": ("qwen3", (151936, 36, 32, 8, 2560), {"intermediate_size": 9728, "head_dim": 128}),
    "qwen3-30b-a3b-6-layers": (
        "qwen3_moe",
        (151936, 6, 32, 4, 2048),
        {
            "head_dim": 128,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "tie_word_embeddings": False,
        },
    ),
}
SHAPES = tuple(_SIZES)
_DEFAULTS = {"tie_word_embeddings": True, "max_position_embeddings": 32768, "rope_theta": 1e6, "use_cache": False}
_ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build_model(name: str, setting: Setting, dtype: torch.dtype, device: torch.device, *, lora: bool) -> Any:
    """Build the model of a shape on a device, with transformers' own random weights from one seed."""
    kind, sizes, others = _SIZES[name]
    config = transformers.AutoConfig.for_model(kind, **{**_DEFAULTS, **dict(zip(_KEYS, sizes)), **others})
    torch.manual_seed(0)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=setting.implementation, **{dtype_argument(): dtype}
        )
    if lora:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules=_ADAPTED))
    return model.train()


def count_operations(model: Any, lengths: list[int]) -> dict[str, float]:
    """Return the floating point operations of a step on documents of these lengths, which training needs at least.

    ``matrices``: 2 for each weight of a matrix and token forward, 2 more for its gradient where it is trained, and 2
    for its input's; the output layer counts, embeddings do not, and of experts those that a token goes to.
    ``attention``: 12 x layers x heads x head size for each pair of tokens of which one sees the other, under the
    causal mask of each document. What gradient checkpointing does again is not counted, nor is padding.
    """
    config = model.config
    active = getattr(config, "num_experts_per_tok", 0) / getattr(config, "num_experts", 1)
    weights = 0.0
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            if isinstance(module, torch.nn.Linear) or "Router" in type(module).__name__:
                share = 1.0
            elif "Experts" in type(module).__name__:
                share = active
            else:
                continue
            if weight.ndim > 1:
                weights += share * weight.numel() * (6 if weight.requires_grad else 4)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    heads = config.num_hidden_layers * config.num_attention_heads
    return {"matrices": weights * sum(lengths), "attention": 12.0 * heads * head * pairs}
