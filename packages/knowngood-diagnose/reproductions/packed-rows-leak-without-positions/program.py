"""A tiny model of a family: two samples packed into one row, against each in a row of its own.

program.py MODEL [--padded]   (not packed: a row for each sample, padded behind it)
"""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

LENGTHS = (9, 13)
WIDTHS = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
FIELDS = {
    "falcon": WIDTHS,
    "bloom": {"n_layer": 2, "hidden_size": 32, "n_head": 4},
    "mpt": {"n_layers": 2, "d_model": 32, "n_heads": 4},
    "opt": {**WIDTHS, "word_embed_proj_dim": 32, "ffn_dim": 64},
    "llama": {**WIDTHS, "intermediate_size": 64},
    "lfm2": {
        **WIDTHS,
        "intermediate_size": 64,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention"],
    },
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
    logits = [pick for given in arguments for pick in read_logits(model(**given, use_cache=False).logits)]
    loss = sum(
        torch.nn.functional.cross_entropy(one[:-1], sample[1:], reduction="sum") for one, sample in zip(logits, samples)
    )
    loss.backward()
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return torch.cat(logits).detach().flatten(), torch.cat(gradients), loss.item()


expected = train([{"input_ids": sample[None]} for sample in samples], lambda logits: [logits[0]])
longest = max(LENGTHS)
if "--padded" in sys.argv:
    rows = torch.stack([torch.nn.functional.pad(sample, (0, longest - len(sample))) for sample in samples])
    mask = torch.stack([(torch.arange(longest) < length).long() for length in LENGTHS])
    given = {"input_ids": rows, "attention_mask": mask}
    outcome = train([given], lambda logits: [row[:length] for row, length in zip(logits, LENGTHS)])
else:
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    given = {"input_ids": torch.cat(samples)[None], "position_ids": places[None]}
    try:
        outcome = train([given], lambda logits: logits[0].split(LENGTHS))
    except TypeError:  # its forward takes no position_ids: a row has one sequence of positions
        del given["position_ids"]
        outcome = train([given], lambda logits: logits[0].split(LENGTHS))
logits, gradients = (((a - b).norm() / b.norm()).item() for a, b in zip(outcome[:2], expected[:2]))
loss = abs(outcome[2] / expected[2] - 1)
print(json.dumps({"logits": round(logits, 6), "gradients": round(gradients, 6), "loss": round(loss, 6)}))
assert max(logits, gradients) < 1e-4, (
    f"{name}: the logits are off by {logits:.1%}, the loss by {loss:.2%} and the gradients by {gradients:.1%} "
    "from those of each sample in a row of its own"
)
