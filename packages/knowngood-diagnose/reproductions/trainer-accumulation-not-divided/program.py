"""One step of transformers' Trainer over four samples: as one batch, and accumulated over four.

program.py [--varied] [--plain]    (samples of different lengths; a model that does not take num_items_in_batch)
"""

import argparse
import json
import tempfile

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

arguments = argparse.ArgumentParser()
arguments.add_argument("--varied", action="store_true")
arguments.add_argument("--plain", action="store_true")
asked = arguments.parse_args()

tiny = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "use_cache": False}
config = Qwen2Config(**tiny, num_attention_heads=4, num_key_value_heads=2)
torch.manual_seed(0)
samples = []
for length in (4, 16, 8, 32) if asked.varied else (16, 16, 16, 16):
    tokens = torch.randint(1, 64, (32,))
    labels = tokens.masked_fill(torch.arange(32) >= length, -100)
    samples.append({"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels})


class Plain(Qwen2ForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, labels=None):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def step(batch, accumulated):
    """What one step takes off the weights at a learning rate of 1, which is the gradient; and the loss it logs."""
    torch.manual_seed(1)
    model = (Plain if asked.plain else Qwen2ForCausalLM)(config)
    before = torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])
    with tempfile.TemporaryDirectory() as folder:
        how = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulated, "max_steps": 1}
        how |= {"learning_rate": 1.0, "lr_scheduler_type": "constant", "optim": "sgd", "max_grad_norm": 0.0}
        how |= {"use_cpu": True, "save_strategy": "no", "logging_steps": 1, "report_to": [], "disable_tqdm": True}
        trainer = Trainer(model=model, args=TrainingArguments(folder, **how), train_dataset=samples)
        trainer.get_train_dataloader = lambda: torch.utils.data.DataLoader(samples, batch_size=batch)
        trainer.train()
    after = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return before - after, next(line["loss"] for line in trainer.state.log_history if "loss" in line)


whole, whole_loss = step(4, 1)
parts, parts_loss = step(1, 4)
ratio = (parts.norm() / whole.norm()).item()
cosine = torch.nn.functional.cosine_similarity(parts, whole, dim=0).item()
print(json.dumps({"ratio": round(ratio, 3), "cosine": round(cosine, 4), "logged": [whole_loss, parts_loss]}))
assert abs(ratio - 1) < 0.01 and cosine > 0.999, (
    f"the gradient of four accumulated batches is {ratio:.2f} times that of one batch of them, its cosine {cosine:.2f}"
)
