"""A patch of LLaMA's flash attention is put in as axolotl did it, by the class's name."""

import json

from transformers.models.llama.modeling_llama import LlamaFlashAttention2

print(json.dumps({"class": LlamaFlashAttention2.__name__}))
