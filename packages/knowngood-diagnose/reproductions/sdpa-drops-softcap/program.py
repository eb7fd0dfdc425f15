"""Gemma 2's logits and gradients under one attention setting, against those of eager attention.

program.py SETTING [--refused]    (the setting should be refused in words)
"""

import json
import sys

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

CAP = 4.0
sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "use_cache": False}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16}
torch.manual_seed(0)
rows = torch.randint(1, 64, (2, 32))


def train(setting, cap):
    """Return the logits and all gradients of one batch, each as one vector of fp64."""
    # Weights of 0.2 make scores of a few units, which a cap of 4 bends.
    config = Gemma2Config(**sizes, **heads, attn_logit_softcapping=cap, initializer_range=0.2)
    config._attn_implementation = setting
    torch.manual_seed(1)
    model = Gemma2ForCausalLM(config).double()
    assert model.config._attn_implementation == setting
    output = model(input_ids=rows, labels=rows, use_cache=False)
    output.loss.backward()
    return output.logits.detach().flatten(), torch.cat([weight.grad.flatten() for weight in model.parameters()])


def describe_difference(ours, theirs):
    return [round(((a - b).norm() / b.norm()).item(), 6) for a, b in zip(ours, theirs)]


setting = sys.argv[1]
with_cap = train("eager", CAP)
without_cap = train("eager", None)
try:
    outcome = train(setting, CAP)
except ValueError as error:
    if "--refused" not in sys.argv or "scaled_dot_product_attention" not in str(error):
        raise
    print(json.dumps({"refused": str(error)}))
    sys.exit()
assert "--refused" not in sys.argv, f"{setting} was not refused"
differences = {
    "from_eager": describe_difference(outcome, with_cap),
    "from_eager_without_cap": describe_difference(outcome, without_cap),
}
print(json.dumps(differences))
logits, gradients = differences["from_eager"]
without = max(differences["from_eager_without_cap"])
assert max(logits, gradients) < 1e-6, (
    f"under {setting} the logits are off by {logits:.1%} and the gradients by {gradients:.1%}; "
    f"from eager attention without the soft-cap they differ by {without:.1e}"
)
