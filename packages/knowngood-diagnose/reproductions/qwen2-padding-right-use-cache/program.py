"""A tiny Qwen2 is called as OpenRLHF's actor calls it, on sequences that generation ended with padding, and trained.

program.py [--no-cache] [--left] [--attention NAME]
"""

import argparse
import json

import flash_attention_without_gpu  # noqa: F401 - first of all
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

arguments = argparse.ArgumentParser()
arguments.add_argument("--no-cache", action="store_true")
arguments.add_argument("--left", action="store_true")
arguments.add_argument("--attention", default="flash_attention_2")
asked = arguments.parse_args()

torch.manual_seed(0)
tiny = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
config = Qwen2Config(**tiny, **heads)
if asked.no_cache:
    config.use_cache = False
model = Qwen2ForCausalLM._from_config(config, attn_implementation=asked.attention, torch_dtype=torch.bfloat16).train()

tokens = torch.randint(1, 64, (2, 16))
attention_mask = torch.ones_like(tokens)
attention_mask[1, slice(0, 4) if asked.left else slice(-4, None)] = 0
labels = tokens.masked_fill(attention_mask == 0, -100)
position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)  # as Actor.forward makes them

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(5):
    logits = model(tokens, attention_mask=attention_mask, position_ids=position_ids).logits.float()
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(round(loss.item(), 4))
print(json.dumps({"losses": losses, "attention": type(model.model.layers[0].self_attn).__name__}))
