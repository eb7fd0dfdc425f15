"""XTuner trains a tiny Qwen2 for five steps, with FlashAttention 2 unless told otherwise.

program.py [--varlen] [--packed] [--attention NAME]: XTuner's options use_varlen_attn and pack_to_max_length.
"""

import argparse
import json
import tempfile

import torch
import torch.distributed as dist

arguments = argparse.ArgumentParser()
arguments.add_argument("--varlen", action="store_true")
arguments.add_argument("--packed", action="store_true")
arguments.add_argument("--attention")
asked = arguments.parse_args()

import flash_attention_without_gpu  # noqa: F401 - first of all
from mmengine import ConfigDict, MessageHub
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from xtuner.model import SupervisedFinetune

torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tiny = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
with tempfile.TemporaryDirectory() as folder:
    Qwen2ForCausalLM(Qwen2Config(**tiny, **heads)).save_pretrained(folder)
    llm = ConfigDict(type=AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path=folder)
    if asked.attention:
        llm.attn_implementation = asked.attention
    model = SupervisedFinetune(llm, use_varlen_attn=asked.varlen).train()

tokens = torch.randint(1, 64, (1, 24))
data = {"input_ids": tokens, "labels": tokens}
# pack_to_max_length: two samples of 12 in one row, each with positions of its own
data["position_ids"] = (torch.arange(12).repeat(2) if asked.packed else torch.arange(24))[None]
if asked.varlen:  # what XTuner's VarlenAttnArgsToMessageHubHook leaves there before each step
    hub = MessageHub.get_instance("varlen_attn_args")
    hub.update_info("cumulative_len_rank_0", torch.tensor([0, 12, 24], dtype=torch.int32))
    hub.update_info("max_seqlen_rank_0", 12)
else:
    data["attention_mask"] = torch.ones_like(tokens, dtype=torch.bool)

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(5):
    loss = model(data, mode="loss")["loss"]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(round(loss.item(), 4))
layer = model.llm.model.layers[0].self_attn
print(json.dumps({"losses": losses, "attention": type(layer).__name__, "forward": layer.forward.__func__.__qualname__}))
