"""A tiny Qwen2 trains with gradient checkpointing; with --no-cache its configuration asks for no cache."""

import json
import sys

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(0)
tiny = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
model = Qwen2ForCausalLM(Qwen2Config(**tiny, num_attention_heads=4, num_key_value_heads=2)).train()
model.gradient_checkpointing_enable()
model.config.use_cache = "--no-cache" not in sys.argv
tokens = torch.randint(1, 64, (2, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(5):
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(round(loss.item(), 4))
print(json.dumps({"losses": losses}))
