"""Trainer trains a tiny Qwen2 for five steps, and gets the tokenizer under its old name or, with --new, its new one."""

import json
import sys

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
words = {f"w{number}": number for number in range(64)}
model_of_words = WordLevel(words, unk_token="w0")  # noqa: S106
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model_of_words), pad_token="w0")  # noqa: S106
tiny = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
model = Qwen2ForCausalLM(Qwen2Config(**tiny, num_attention_heads=4, num_key_value_heads=2))
row = torch.randint(1, 64, (16,))
how = TrainingArguments("out", max_steps=5, logging_steps=1, learning_rate=1e-2, report_to=[], save_strategy="no")
named = {"processing_class" if "--new" in sys.argv else "tokenizer": tokenizer}
trainer = Trainer(model, how, train_dataset=[{"input_ids": row, "labels": row}] * 8, **named)
trainer.train()
print(json.dumps({"losses": [float(line["loss"]) for line in trainer.state.log_history if "loss" in line]}))
