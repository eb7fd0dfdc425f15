"""gpt-oss with two samples packed into one row under eager attention, against each sample in a row of its own.

program.py [--masks]     (with block-diagonal masks of the caller's own beside position_ids)
           [--padded]    (not packed: a row for each sample, padded on the left)
"""

import json
import sys

import torch
from transformers import GptOssConfig, GptOssForCausalLM

WINDOW = 6
LENGTHS = (9, 13)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "sliding_window": WINDOW}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
config = GptOssConfig(**sizes, **heads, **experts, use_cache=False, initializer_range=0.2)
config._attn_implementation = "eager"
torch.manual_seed(0)
samples = [torch.randint(1, 64, (length,)) for length in LENGTHS]
places = torch.cat([torch.arange(length) for length in LENGTHS])[None]


def train(arguments, mode):
    """Return the logits of all real tokens, sample after sample, and all gradients of their sum of losses."""
    torch.manual_seed(1)
    model = GptOssForCausalLM(config)
    logits = [pick for given in arguments for pick in mode(model(**given, use_cache=False).logits)]
    loss = sum(
        torch.nn.functional.cross_entropy(one[:-1], sample[1:], reduction="sum") for one, sample in zip(logits, samples)
    )
    loss.backward()
    gradients = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    return torch.cat(logits).detach().flatten(), gradients, loss.item()


def make_masks():
    """Return the masks of both kinds of layers: nothing after a token, nothing of another sample, and the window."""
    owner = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    distance = torch.arange(sum(LENGTHS))[:, None] - torch.arange(sum(LENGTHS))
    full = (owner[:, None] == owner) & (distance >= 0)
    kinds = {"full_attention": full, "sliding_attention": full & (distance < WINDOW)}
    lowest = torch.finfo(torch.float32).min
    return {kind: torch.zeros(full.shape).masked_fill(~mask, lowest)[None, None] for kind, mask in kinds.items()}


expected = train([{"input_ids": sample[None]} for sample in samples], lambda logits: [logits[0]])
if "--padded" in sys.argv:
    lacks = [max(LENGTHS) - length for length in LENGTHS]
    rows = torch.stack([torch.cat([torch.zeros(lack, dtype=int), s]) for lack, s in zip(lacks, samples)])
    mask = torch.stack([torch.arange(max(LENGTHS)) >= lack for lack in lacks]).long()
    given = {"input_ids": rows, "attention_mask": mask}
    outcome = train([given], lambda logits: [row[lack:] for row, lack in zip(logits, lacks)])
else:
    given = {"input_ids": torch.cat(samples)[None], "position_ids": places}
    given |= {"attention_mask": make_masks()} if "--masks" in sys.argv else {}
    outcome = train([given], lambda logits: logits[0].split(LENGTHS))
logits, gradients = (((a - b).norm() / b.norm()).item() for a, b in zip(outcome[:2], expected[:2]))
loss = abs(outcome[2] / expected[2] - 1)
print(json.dumps({"logits": round(logits, 6), "gradients": round(gradients, 6), "loss": round(loss, 6)}))
assert max(logits, gradients) < 1e-4, (
    f"the logits are off by {logits:.1%}, the loss by {loss:.2%} and the gradients by {gradients:.1%} from those of each "
    "sample in a row of its own"
)
