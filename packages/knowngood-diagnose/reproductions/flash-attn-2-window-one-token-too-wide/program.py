"""A model's logits and gradients under one attention setting, against eager attention in fp32, with a sliding window.

program.py FAMILY SETTING [--one-smaller]    (the window of the configuration is one smaller than the one of eager)
"""

import json
import sys

import gpu_for_transformers  # noqa: F401 - first of all
import torch
import transformers

ALLOWED = 0.05  # bfloat16 is 1 to 2 % off
WINDOW = 4
FAMILIES = {
    "Gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16},
    "Gemma3": {"head_dim": 16, "query_pre_attn_scalar": 16},
    "Mistral": {},
    "Mixtral": {"num_local_experts": 2, "num_experts_per_tok": 2},  # all experts, so that rounding chooses no other
    "Phi3": {"pad_token_id": 0},
    "Qwen2": {"use_sliding_window": True, "max_window_layers": 1},  # the second layer has the window
    "Starcoder2": {},
}
CLASSES = {"Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM")}
sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
torch.manual_seed(0)
rows = torch.randint(1, 64, (2, 24))  # longer than the window
mask = torch.ones_like(rows)
mask[1, 18:] = 0


def train(setting, dtype, window, padded):
    """Return the logits of one batch and all gradients, each as one vector of fp64."""
    of_config, of_model = CLASSES.get(family, (f"{family}Config", f"{family}ForCausalLM"))
    named = {**sizes, **heads, **FAMILIES[family], "initializer_range": 0.1, "use_cache": False}
    config = getattr(transformers, of_config)(**named, sliding_window=window)
    torch.manual_seed(1)
    make = getattr(transformers, of_model)._from_config
    model = make(config, attn_implementation=setting, torch_dtype=torch.bfloat16).to(dtype)
    assert model.config._attn_implementation == setting
    labels = rows.masked_fill(mask == 0, -100) if padded else rows
    output = model(input_ids=rows, attention_mask=mask if padded else None, labels=labels, use_cache=False)
    output.loss.backward()
    logits = output.logits.detach()[mask.bool()] if padded else output.logits.detach()
    return logits.flatten().double(), torch.cat([weight.grad.flatten().double() for weight in model.parameters()])


def worst_difference(ours, theirs):
    return round(max(((a - b).norm() / b.norm()).item() for a, b in zip(ours, theirs)), 5)


family, setting = sys.argv[1:3]
found = {}
for padded in (False, True):
    ours = train(setting, torch.bfloat16, WINDOW - ("--one-smaller" in sys.argv), padded)
    found["padded" if padded else "unpadded"] = {
        f"from eager with a window of {window}": worst_difference(ours, train("eager", torch.float32, window, padded))
        for window in (WINDOW, WINDOW + 1)
    }
print(json.dumps(found))
wrong = {rows: item for rows, item in found.items() if item[f"from eager with a window of {WINDOW}"] > ALLOWED}
assert not wrong, f"{family} under {setting} differs from eager attention: {wrong}"
