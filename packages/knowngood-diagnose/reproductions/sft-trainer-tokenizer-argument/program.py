"""SFTTrainer trains a tiny Qwen2. It gets the tokenizer under its old name or, with --new, its new one."""

import json
import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
words = {f"w{number}": number for number in range(64)}
spoken = Tokenizer(WordLevel(words, unk_token="w0"))  # noqa: S106
spoken.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=spoken, pad_token="w0", eos_token="w1")  # noqa: S106
tiny = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
model = Qwen2ForCausalLM(Qwen2Config(**tiny, num_attention_heads=4, num_key_value_heads=2))
text = " ".join(f"w{number}" for number in torch.randint(2, 64, (16,)).tolist())
how = SFTConfig("out", max_steps=5, logging_steps=1, learning_rate=1e-2, report_to=[], save_strategy="no", use_cpu=True)
named = {"processing_class" if "--new" in sys.argv else "tokenizer": tokenizer}
trainer = SFTTrainer(model, how, train_dataset=Dataset.from_list([{"text": text}] * 8), **named)
trainer.train()
print(json.dumps({"losses": [float(line["loss"]) for line in trainer.state.log_history if "loss" in line]}))
