"""gpt-oss's logits and the gradients of its sinks under one attention setting, against eager attention in fp32.

program.py SETTING [--refused]    (the setting should not be taken, and a text should say so)
"""

import json
import sys

import gpu_for_transformers  # noqa: F401 - first of all
import torch
from transformers import GptOssConfig, GptOssForCausalLM

ALLOWED = 0.05  # bfloat16 is 1 to 2 % off
# Rows shorter than the sliding window, which transformers 4.55 makes one token too wide under FlashAttention 2.
sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
# Every token goes to all experts, so that rounding cannot choose other ones.
experts = {"num_local_experts": 2, "num_experts_per_tok": 2}
torch.manual_seed(0)
rows = torch.randint(1, 64, (2, 24))
sinks = torch.randn(2, 4) + 1


def train(setting, dtype, sinks=sinks):
    """Return the logits of one batch, and the gradients of all sinks or `None` where they have none."""
    config = GptOssConfig(**sizes, **heads, **experts, use_cache=False, initializer_range=0.1)
    torch.manual_seed(1)
    model = GptOssForCausalLM._from_config(config, attn_implementation=setting, **{DTYPE: torch.bfloat16}).to(dtype)
    assert model.config._attn_implementation == setting
    parameters = [layer.self_attn.sinks for layer in model.model.layers]
    for parameter, values in zip(parameters, sinks):
        parameter.data.copy_(values)
    output = model(input_ids=rows, labels=rows, use_cache=False)
    output.loss.backward()
    missing = any(parameter.grad is None for parameter in parameters)
    return output.logits.detach().double(), None if missing else torch.stack([p.grad.double() for p in parameters])


def difference(ours, theirs):
    return round(((ours - theirs).norm() / theirs.norm()).item(), 5)


DTYPE = "dtype" if hasattr(GptOssConfig(), "dtype") else "torch_dtype"
setting = sys.argv[1]
expected_logits, expected_gradients = train("eager", torch.float32)
without_sinks, _ = train("eager", torch.float32, torch.full_like(sinks, -1e4))
try:
    logits, gradients = train(setting, torch.bfloat16)
except (ImportError, ValueError) as error:
    if "--refused" not in sys.argv:
        raise
    print(json.dumps({"refused": str(error)}))
    sys.exit()
assert "--refused" not in sys.argv, f"{setting} was taken"
found = {
    "from_eager": difference(logits, expected_logits),
    "from_eager_without_sinks": difference(logits, without_sinks),
    "gradients_of_sinks": "none" if gradients is None else difference(gradients, expected_gradients),
}
print(json.dumps(found))
assert gradients is not None, (
    f"under {setting} the sinks get no gradient, and the logits are off by {found['from_eager']:.1%}; "
    f"from eager attention without sinks they differ by {found['from_eager_without_sinks']:.1%}"
)
assert max(found["from_eager"], found["gradients_of_sinks"]) < ALLOWED, found
