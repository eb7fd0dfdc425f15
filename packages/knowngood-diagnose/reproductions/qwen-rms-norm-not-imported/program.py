"""Qwen's first model code, in the copy that modelscope publishes, is imported and trains a tiny model."""

import json
import warnings

import torch

warnings.simplefilter("ignore")
from modelscope.models.nlp.qwen import backbone, configuration, text_generation

torch.manual_seed(0)
config = configuration.QWenConfig(
    vocab_size=64, n_embd=64, n_layer=2, n_head=4, kv_channels=16, ffn_hidden_size=128, bf16=False, fp16=False
)
# What a published config.json has beside these.
config.padded_vocab_size, config.seq_length, config.max_position_embeddings = 64, 64, 64
config.pos_emb, config.params_dtype = "rotary", torch.float32
config.use_flash_attn = False  # its attention; the norm and the rotary embedding are chosen by what can be imported
model = text_generation.QWenForTextGeneration(config).float().train()
tokens = torch.randint(1, 64, (2, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(5):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(round(loss.item(), 4))
flash = {"rms_norm": backbone.rms_norm is not None, "rotary": backbone.use_flash_rotary}
print(json.dumps({"losses": losses, "imported from flash-attn": flash}))
