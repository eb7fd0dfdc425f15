"""Fine-tune a causal language model on prompts and completions.

Without --model a tiny Qwen2 is made on the spot, and without --data additions are: nothing is downloaded. --data is a
file with one JSON object a line, {"prompt": ..., "completion": ...}; the loss counts the completions only.
"""

import argparse
import json
import os
import time
from pathlib import Path

# Several GPUs want torchrun: started by plain python, Trainer uses DataParallel, in which bf16 has no effect.
if "LOCAL_RANK" not in os.environ:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2Config,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", help="a folder with a model, or its name on the hub (default: a tiny one)")
parser.add_argument("--data", type=Path, help="JSON lines with prompt and completion (default: additions)")
parser.add_argument("--attn", default="sdpa", help="eager, sdpa, flex_attention, flash_attention_2, ...")
parser.add_argument("--compile", action="store_true", help="torch.compile; `knowngood pick` says what was fastest")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=16, help="examples a device and step")
parser.add_argument("--lr", type=float, help="learning rate (default: 2e-5, and 1e-2 for the tiny model)")
parser.add_argument("--output", help="save the trained model in this folder")
options = parser.parse_args()
set_seed(0)

if options.model:
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    encode, end = tokenizer.encode, tokenizer.eos_token_id
    model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation=options.attn)
else:  # each byte is a token, and 256 ends a text
    encode, end = lambda text, **_: list(text.encode()), 256
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(vocab_size=260, num_key_value_heads=2, **sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=options.attn)


def tokenize(prompt, completion):
    start, rest = encode(prompt), [*encode(completion, add_special_tokens=False), end]
    return {"input_ids": start + rest, "attention_mask": [1] * len(start + rest), "labels": [-100] * len(start) + rest}


def collate(items):
    padding = {"input_ids": 0, "attention_mask": 0, "labels": -100}  # -100: no loss
    rows = {key: [torch.tensor(item[key]) for item in items] for key in padding}
    speed.tokens += sum(map(len, rows["input_ids"]))
    return {key: torch.nn.utils.rnn.pad_sequence(rows[key], True, padding[key]) for key in padding}


class Speed(TrainerCallback):
    """Tokens a second from the second step on, padding not counted, and the share of the card's matrix products."""

    tokens = 0

    def on_step_end(self, _args, state, _control, **_):
        if state.global_step == 1:  # kernels are compiled in the first step
            self.tokens, self.began = 0, time.perf_counter()

    def text(self, device, dtype):
        speed = self.tokens / (time.perf_counter() - self.began)
        matrix = torch.ones(4096 if device.type == "cuda" else 512, 4096, dtype=dtype, device=device)
        (matrix @ matrix.T).sum().item()
        began = time.perf_counter()
        sum((matrix @ matrix.T)[0, 0] for _ in range(50)).item()
        limit = 50 * 2 * matrix.shape[0] * matrix.numel() / (time.perf_counter() - began)
        weights = sum(weight.numel() for weight in model.parameters())
        return f"{speed:,.0f} tokens/s, {6 * weights * speed / limit:.1%} of matrix products"


if options.data:
    examples = [json.loads(line) for line in options.data.read_text().splitlines() if line.strip()]
else:
    examples = [{"prompt": f"{a} + {b} = ", "completion": str(a + b)} for a in range(20) for b in range(20)]

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
    optim="adamw_torch_fused",
    torch_compile=options.compile,
)
data = [tokenize(**example) for example in examples]
speed = Speed()
trainer = Trainer(model=model, args=arguments, data_collator=collate, train_dataset=data, callbacks=[speed])
trainer.train()
if trainer.is_world_process_zero():
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    where = torch.cuda.get_device_name() if gpu else "the CPU"
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps on {where}, {options.attn}")
    if len(losses) > 1:
        dtype = torch.bfloat16 if half else torch.float16 if gpu else torch.float32
        print(speed.text(model.device, dtype))
if options.output:
    trainer.save_model(options.output)
    if options.model:
        tokenizer.save_pretrained(options.output)
