"""One step of transformers' Trainer over whole rows: its gradient against that of the mean over all predicted tokens.

program.py [--masked]    (the first label of every row is -100, as where prompts are masked)
"""

import json
import sys
import tempfile

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

tiny = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "use_cache": False}
config = Qwen2Config(**tiny, num_attention_heads=4, num_key_value_heads=2)
torch.manual_seed(0)
rows = [torch.randint(1, 64, (12,)) for _ in range(4)]
samples = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.clone()} for row in rows]
if "--masked" in sys.argv:
    for sample in samples:
        sample["labels"][0] = -100


def build():
    torch.manual_seed(1)
    return Qwen2ForCausalLM(config)


def read_weights(model):
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


plain = build()
logits = plain(input_ids=torch.stack(rows)).logits[:, :-1]
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.stack(rows)[:, 1:].flatten())
loss.backward()
expected = torch.cat([weight.grad.flatten() for weight in plain.parameters()])

model = build()
before = read_weights(model)
with tempfile.TemporaryDirectory() as folder:
    # A learning rate of 1 takes the gradient off the weights.
    how = {"per_device_train_batch_size": 4, "max_steps": 1, "learning_rate": 1.0, "lr_scheduler_type": "constant"}
    how |= {"optim": "sgd", "max_grad_norm": 0.0, "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
    trainer = Trainer(
        model=model, args=TrainingArguments(folder, report_to=[], disable_tqdm=True, **how), train_dataset=samples
    )
    trainer.train()
ratio = ((before - read_weights(model)).norm() / expected.norm()).item()
logged = next(line["loss"] for line in trainer.state.log_history if "loss" in line)
print(json.dumps({"gradient": round(ratio, 4), "logged": logged, "mean_of_predictions": round(loss.item(), 4)}))
assert abs(ratio - 1) < 0.01, f"the gradient is {ratio:.3f} times that of the mean over the 11 predictions of each row"
