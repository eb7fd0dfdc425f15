"""The families that the suite tries when it is given no configuration: a config class each, and what differs from it.

The sizes are the defaults of transformers' config class, which the suite reads when it runs. What stands here beside
them is a choice of the suite, with its reason; it says nothing of a released model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """A model type, and the fields in which the suite departs from its class's defaults."""

    model_type: str
    fields: dict[str, Any] = field(default_factory=dict)
    because: str = ""


GROUPED = "the class's default gives every query head its own keys and values; released models share them"
WIDE = "the class's default divides the hidden size by the heads; the documented models state 128"

FAMILIES = {
    "qwen2": Family("qwen2", {"num_key_value_heads": 8}, GROUPED),
    "qwen2-window": Family(
        "qwen2",
        {"num_key_value_heads": 8, "use_sliding_window": True, "sliding_window": 4096},
        "its window is optional",
    ),
    "qwen3": Family("qwen3", {"num_key_value_heads": 8}, GROUPED),
    "qwen3-moe": Family("qwen3_moe", {"head_dim": 128}, WIDE),
    "llama": Family(
        "llama",
        {
            "num_key_value_heads": 8,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
        GROUPED,
    ),
    "mistral": Family("mistral"),
    "mixtral": Family("mixtral", {"sliding_window": 4096}, "its window is optional"),
    "gemma2": Family("gemma2"),
    "gemma3": Family("gemma3_text"),
    "phi3": Family("phi3", {"sliding_window": 2047}, "its window is optional"),
    "gpt-oss": Family("gpt_oss"),
    "deepseek-v3": Family("deepseek_v3"),
    "granite": Family(
        "granite", {"num_key_value_heads": 8, "attention_multiplier": 0.0625}, "the default of 1.0 is no multiplier"
    ),
    "olmo2": Family("olmo2", {"num_key_value_heads": 8}, GROUPED),
    "qwen2-vl": Family(
        "qwen2_vl",
        {"text_config": {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}},
        "the class's default has no sections, without which its model does not run; their sum is half a head",
    ),
    "qwen3-next": Family("qwen3_next"),
    "falcon-h1": Family(
        "falcon_h1", {"mamba_d_head": 64, "mamba_n_heads": 128, "mamba_d_ssm": 8192}, "the default's heads are 8 wide"
    ),
}
