"""Fine-tune a causal language model on prompts and completions.

Without --model a tiny Qwen2 is made on the spot, and without --data additions are: nothing is downloaded. --data is a
file with one JSON object a line, {"prompt": ..., "completion": ...}; the loss counts the completions only.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

# Several GPUs want torchrun: started by plain python, Trainer uses DataParallel, in which bf16 has no effect.
if "LOCAL_RANK" not in os.environ:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Trainer, TrainingArguments, set_seed


class Bytes:
    """A tokenizer that needs no files: each byte is a token, and 256 ends a text."""

    eos_token_id = 256

    def encode(self, text: str, **_) -> list[int]:
        return list(text.encode())


def read_examples(path: Path | None) -> list[dict[str, str]]:
    if path:
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [{"prompt": f"{a} + {b} = ", "completion": str(a + b)} for a in range(20) for b in range(20)]


def tokenize(tokenizer, example: dict[str, str]) -> dict[str, list[int]]:
    prompt = tokenizer.encode(example["prompt"])
    completion = [*tokenizer.encode(example["completion"], add_special_tokens=False), tokenizer.eos_token_id]
    labels = [-100] * len(prompt) + completion  # -100: no loss
    return {"input_ids": prompt + completion, "labels": labels}


def collate(items: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    def pad(name: str, value: int) -> torch.Tensor:
        rows = [torch.tensor(item[name]) for item in items]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

    labels, lengths = pad("labels", -100), torch.tensor([len(item["input_ids"]) for item in items])
    mask = (torch.arange(labels.shape[1]) < lengths[:, None]).long()
    return {"input_ids": pad("input_ids", 0), "attention_mask": mask, "labels": labels}


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", help="a folder with a model, or its name on the hub (default: a tiny one)")
parser.add_argument("--data", type=Path, help="JSON lines with prompt and completion (default: additions)")
parser.add_argument("--attn", default="sdpa", help="eager, sdpa, flex_attention, flash_attention_2, ...")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=16, help="examples a device and step")
parser.add_argument("--lr", type=float, help="learning rate (default: 2e-5, and 1e-2 for the tiny model)")
parser.add_argument("--output", help="save the trained model in this folder")
options = parser.parse_args()
set_seed(0)

if options.model:
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation=options.attn)
else:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(vocab_size=260, num_key_value_heads=2, **shape)
    tokenizer, model = Bytes(), AutoModelForCausalLM.from_config(config, attn_implementation=options.attn)

gpu = torch.cuda.is_available()
half = gpu and torch.cuda.get_device_capability() >= (8, 0)  # older cards have no bfloat16
arguments = TrainingArguments(
    output_dir=options.output or "trained",
    max_steps=options.steps,
    per_device_train_batch_size=options.batch,
    learning_rate=options.lr or (2e-5 if options.model else 1e-2),
    lr_scheduler_type="constant",
    bf16=half,
    fp16=gpu and not half,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=not gpu,
)
examples = [tokenize(tokenizer, example) for example in read_examples(options.data)]
trainer = Trainer(model=model, args=arguments, train_dataset=examples, data_collator=collate)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
if trainer.is_world_process_zero():
    where = torch.cuda.get_device_name() if gpu else "the CPU"
    print(f"loss {float(losses[0]):.3f} -> {float(losses[-1]):.3f} in {len(losses)} steps on {where}, {options.attn}")
if options.output:
    trainer.save_model(options.output)
