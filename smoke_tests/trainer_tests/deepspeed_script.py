"""A user's training script: transformers' Trainer, LoRA by peft, a DeepSpeed configuration. ``deepspeed FILE CONFIG``.

It stands alone, as DeepSpeed's launcher starts it by its path; the checks call ``train`` in their own process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

IGNORED = -100


def train(config: dict[str, Any]) -> None:
    """Train the completions of the rows in a file; ``config`` has the paths, and the options by transformers' names."""
    import peft
    import transformers
    from datasets import load_dataset

    arguments = transformers.TrainingArguments(**config["arguments"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(config["model"])
    model = transformers.AutoModelForCausalLM.from_pretrained(config["model"], **config["model_options"])
    if config["lora"]:
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config["lora"]))

    def tokenize(row: dict[str, str]) -> dict[str, list[int]]:
        prompt, completion = tokenizer(row["prompt"])["input_ids"], tokenizer(row["completion"])["input_ids"]
        tokens = [*prompt, *completion, tokenizer.eos_token_id]
        return {"input_ids": tokens, "labels": [IGNORED] * len(prompt) + tokens[len(prompt) :]}

    class OneGroupTrainer(transformers.Trainer):
        """A trainer whose optimizer has no empty group of weights, which DeepSpeed would take away."""

        def create_optimizer(self, *words: Any) -> Any:
            made = super().create_optimizer(*words)
            made.param_groups[:] = [group for group in made.param_groups if group["params"]]
            return made

    rows = load_dataset("json", data_files=config["rows"], split="train")
    kind = OneGroupTrainer if config["without_empty_groups"] else transformers.Trainer
    kind(
        model=model,
        args=arguments,
        train_dataset=rows.map(tokenize, remove_columns=rows.column_names),
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer),
    ).train(resume_from_checkpoint=config["resumed"])


if __name__ == "__main__":
    train(json.loads(Path(sys.argv[-1]).read_text(encoding="utf-8")))
