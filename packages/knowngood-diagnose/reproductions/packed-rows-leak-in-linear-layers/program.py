"""A model with linear attention or state space: two samples packed into one row, against each in a row of its own.

program.py MODEL [--padded]      (not packed: a row for each sample, padded on the left)
                 [--attention]   (a model of the same family whose layers are all full attention)
                 [--seams]       (the seams are passed as cu_seq_lens_q and seq_idx too; a refusal in words is well)
"""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

LENGTHS = (9, 13)
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 8}
MODELS = {
    "qwen3_next": {
        **{"num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
        **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2},
        **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    },
    "falcon_h1": {"num_hidden_layers": 2, "mamba_d_ssm": 64, **MAMBA},
    "granitemoehybrid": {"num_hidden_layers": 2, "num_local_experts": 4, "shared_intermediate_size": 32, **MAMBA},
}
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "use_cache": False}
name = sys.argv[1]
fields = {**sizes, "num_key_value_heads": 2, "initializer_range": 0.2, **MODELS[name]}
if "--attention" in sys.argv:
    fields["layer_types"] = ["full_attention"] * fields["num_hidden_layers"]
config = AutoConfig.for_model(name, **fields)
torch.manual_seed(0)
samples = [torch.randint(1, 64, (length,)) for length in LENGTHS]


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
    rows = torch.stack([torch.cat([torch.zeros(lack, dtype=int), s]) for lack, s in zip(lacks, samples)])
    mask = torch.stack([torch.arange(max(LENGTHS)) >= lack for lack in lacks]).long()
    given = {"input_ids": rows, "attention_mask": mask}
    outcome = train([given], lambda logits: [row[lack:] for row, lack in zip(logits, lacks)])
else:
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    given = {"input_ids": torch.cat(samples)[None], "position_ids": places[None]}
    if "--seams" in sys.argv:
        seams = torch.tensor([0, *LENGTHS]).cumsum(0).int()
        owner = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS)).int()
        given |= {"cu_seq_lens_q": seams, "cu_seq_lens_k": seams, "seq_idx": owner[None]}
        given |= {"max_length_q": max(LENGTHS), "max_length_k": max(LENGTHS)}
    try:
        outcome = train([given], lambda logits: logits[0].split(LENGTHS))
    except ValueError as error:
        if "--seams" not in sys.argv or "keep packed sequences apart" not in str(error):
            raise
        print(json.dumps({"refused": str(error)}))
        sys.exit()
logits, gradients = (((a - b).norm() / b.norm()).item() for a, b in zip(outcome[:2], expected[:2]))
loss = abs(outcome[2] / expected[2] - 1)
print(json.dumps({"logits": round(logits, 6), "gradients": round(gradients, 6), "loss": round(loss, 6)}))
assert max(logits, gradients) < 1e-4, (
    f"{name}: the logits are off by {logits:.1%}, the loss by {loss:.2%} and the gradients by {gradients:.1%} from those "
    "of each sample in a row of its own"
)
