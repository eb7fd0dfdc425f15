"""A padded batch goes on from a cache by two tokens at a time, as in assisted generation: transformers' own unpadding.

With as many queries as keys transformers unpads by itself; with fewer it calls flash-attn's unpad_input.
"""

import json

import flash_attention_without_gpu  # noqa: F401 - first of all
import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(0)
tiny = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
config = Qwen2Config(**tiny, num_attention_heads=4, num_key_value_heads=2)
model = Qwen2ForCausalLM._from_config(config, attn_implementation="flash_attention_2", torch_dtype=torch.bfloat16)
cache = DynamicCache()
past = torch.randn(2, 2, 6, 16, dtype=torch.bfloat16)
cache.update(past, past, 0)
attention_mask = torch.ones(2, 8, dtype=torch.long)
attention_mask[1, :3] = 0
with torch.no_grad():
    out = model.eval()(torch.randint(1, 64, (2, 2)), attention_mask=attention_mask, past_key_values=cache)
print(json.dumps({"logits": list(out.logits.shape), "finite": bool(out.logits.isfinite().all())}))
