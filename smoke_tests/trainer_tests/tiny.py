"""What a trainer is given as files: a tiny Qwen2 or Qwen3 with a tokenizer, and rows of text that can be learned."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import transformers

from smoke_tests import data, model

if TYPE_CHECKING:
    from pathlib import Path

END, PAD = data.VOCABULARY, data.VOCABULARY + 1
"""The ids of the tokens that end and that fill a row."""
VOCABULARY = data.VOCABULARY + 8
LENGTHS = (127, 96, 54, 72, 111, 33, 88, 61)  # with the end token none is a multiple of another
PROMPTS = (31, 40, 10, 25, 60, 8, 44, 17)  # how much of each row is a prompt, where it is split


def write_model(folder: Path, family: str) -> None:
    """Save a tiny model of a family (``qwen2``, ``qwen3``) and its tokenizer, as a user downloads them."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": model.TINY.hidden,
        "intermediate_size": model.TINY.intermediate,
        "num_hidden_layers": model.TINY.layers,
        "num_attention_heads": model.TINY.heads,
        "num_key_value_heads": model.TINY.kv_heads,
        "head_dim": model.TINY.head_dim,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "bos_token_id": None,
    }
    kind = {"qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}[family]
    built = transformers.AutoModelForCausalLM.from_config(kind(**sizes))
    model.fill(built)
    with torch.no_grad():
        built.model.embed_tokens.weight[PAD:] = 0.0
    built.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> Any:
    """Qwen's kind of tokenizer, bytes and no merges: the character with the number n is the token n."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = {_byte_letter(byte): byte for byte in range(data.VOCABULARY)} | {"<end>": END, "<pad>": PAD}
    made = Tokenizer(models.BPE(words, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<pad>", special=True)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<pad>")  # noqa: S106


def _byte_letter(byte: int) -> str:
    """The letter by which byte-level tokenizers write a byte of ASCII: itself where it can be printed."""
    if 33 <= byte <= 126:
        return chr(byte)
    unprinted = [number for number in range(256) if not (33 <= number <= 126 or 161 <= number <= 172 or number >= 174)]
    return chr(256 + unprinted.index(byte))


def rows() -> list[list[int]]:
    """The tokens of each row, with the end token that a trainer adds."""
    return [[*data.sequence(number, length), END] for number, length in enumerate(LENGTHS)]


def text(tokens: list[int]) -> str:
    """The text that the tokenizer reads as these tokens."""
    return "".join(map(chr, tokens))


def write_lines(file: Path, lines: list[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def split_rows() -> list[tuple[str, str]]:
    """Each row without its end token as the text of its prompt and that of its completion."""
    return [(text(row[:prompt]), text(row[prompt:-1])) for row, prompt in zip(rows(), PROMPTS)]


def targets(tokens: list[int], prompt: int) -> list[int]:
    """What each position of a row must predict; nothing where the next token is one of the ``prompt`` first ones."""
    wanted = data.targets(tokens)
    return [data.IGNORED] * (prompt - 1) + wanted[prompt - 1 :] if prompt else wanted


def tokens_of(plain: str) -> list[int]:
    """The tokens that the tokenizer reads a text of ASCII as."""
    return [ord(letter) for letter in plain]
