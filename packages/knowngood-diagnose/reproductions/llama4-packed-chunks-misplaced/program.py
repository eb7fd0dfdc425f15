"""A tiny Llama 4 with chunked attention: two samples packed into one row, against each in a row of its own.

program.py [--padded]    (not packed: a row for each sample, padded in front)
           [--aligned]   (the first sample fills whole chunks)
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, Llama4TextConfig

CHUNK = 8
LENGTHS = (16, 21) if "--aligned" in sys.argv else (13, 21)
config = Llama4TextConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=32,
    intermediate_size_mlp=64,
    head_dim=8,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=2,
    attention_chunk_size=CHUNK,
    layer_types=["chunked_attention", "full_attention"],
    no_rope_layers=[1, 0],
    moe_layers=[],
    initializer_range=0.3,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
torch.manual_seed(0)
samples = [torch.randint(3, 64, (length,)) for length in LENGTHS]


def train(arguments, read_logits):
    """Return the logits of all real tokens, all gradients of their sum of losses, and that sum."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    logits = [pick for given in arguments for pick in read_logits(model(**given, use_cache=False).logits)]
    loss = sum(
        torch.nn.functional.cross_entropy(one[:-1], sample[1:], reduction="sum") for one, sample in zip(logits, samples)
    )
    loss.backward()
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return torch.cat(logits).detach().flatten(), torch.cat(gradients), loss.item()


expected = train([{"input_ids": sample[None]} for sample in samples], lambda logits: [logits[0]])
if "--padded" in sys.argv:
    lacks = [max(LENGTHS) - length for length in LENGTHS]
    rows = torch.stack([torch.nn.functional.pad(sample, (lack, 0)) for lack, sample in zip(lacks, samples)])
    mask = torch.stack([(torch.arange(max(LENGTHS)) >= lack).long() for lack in lacks])
    given = {"input_ids": rows, "attention_mask": mask}
    outcome = train([given], lambda logits: [row[lack:] for row, lack in zip(logits, lacks)])
else:
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    given = {"input_ids": torch.cat(samples)[None], "position_ids": places[None]}
    outcome = train([given], lambda logits: logits[0].split(LENGTHS))
logits, gradients = (((a - b).norm() / b.norm()).item() for a, b in zip(outcome[:2], expected[:2]))
loss = abs(outcome[2] / expected[2] - 1)
print(json.dumps({"logits": round(logits, 6), "gradients": round(gradients, 6), "loss": round(loss, 6)}))
assert max(logits, gradients) < 1e-4, (
    f"the logits are off by {logits:.1%}, the loss by {loss:.2%} and the gradients by {gradients:.1%} "
    "from those of each sample in a row of its own"
)
