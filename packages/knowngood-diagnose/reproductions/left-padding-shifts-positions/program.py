"""A tiny model of a family: two samples padded in front to one length, against each without padding.

program.py MODEL [--positions]   (the position of each token is passed as position_ids)
                 [--behind]      (padded behind)
"""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

LENGTHS = (9, 13)
WIDTHS = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
FIELDS = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4},
    "gpt_neo": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {**WIDTHS, "num_key_value_heads": 2, "head_dim": 8},
    "llama": WIDTHS,
}
name = sys.argv[1]
config = AutoConfig.for_model(name, vocab_size=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, **FIELDS[name])
config.initializer_range = 0.2
torch.manual_seed(0)
samples = [torch.randint(3, 64, (length,)) for length in LENGTHS]


def train(arguments, read_logits):
    """Return the logits of all real tokens, all gradients of their sum of losses, and that sum."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():  # weights of norms are all 1 at first, which hides where they stand
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    logits = [pick for given in arguments for pick in read_logits(model(**given, use_cache=False).logits)]
    loss = sum(
        torch.nn.functional.cross_entropy(one[:-1], sample[1:], reduction="sum") for one, sample in zip(logits, samples)
    )
    loss.backward()
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return torch.cat(logits).detach().flatten(), torch.cat(gradients), loss.item()


expected = train([{"input_ids": sample[None]} for sample in samples], lambda logits: [logits[0]])
lacks = [0 if "--behind" in sys.argv else max(LENGTHS) - length for length in LENGTHS]
places = torch.arange(max(LENGTHS))
mask = torch.stack([((places >= lack) & (places < lack + length)).long() for lack, length in zip(lacks, LENGTHS)])
rows = torch.zeros_like(mask)
for row, sample, lack in zip(rows, samples, lacks):
    row[lack : lack + len(sample)] = sample
given = {"input_ids": rows, "attention_mask": mask}
if "--positions" in sys.argv:
    given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
parts = [slice(lack, lack + length) for lack, length in zip(lacks, LENGTHS)]
outcome = train([given], lambda logits: [row[part] for row, part in zip(logits, parts)])
logits, gradients = (((a - b).norm() / b.norm()).item() for a, b in zip(outcome[:2], expected[:2]))
loss = abs(outcome[2] / expected[2] - 1)
print(json.dumps({"logits": round(logits, 6), "gradients": round(gradients, 6), "loss": round(loss, 6)}))
assert max(logits, gradients) < 1e-4, (
    f"{name}: the logits are off by {logits:.1%}, the loss by {loss:.2%} and the gradients by {gradients:.1%} "
    "from those of each sample without padding"
)
