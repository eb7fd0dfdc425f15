"""axolotl's supervised fine-tuning, as ``axolotl train FILE`` starts it, with messages or texts in a file.

``padded`` is a data set of messages (its type ``chat_template``), of which it trains the answers; ``whole`` is one of
texts (``completion``). ``packed`` is its ``sample_packing`` of messages, ``packed-whole`` that of texts. ``full``,
``lora`` and ``qlora`` as TRL's, with gradient checkpointing, which ``uncheckpointed`` leaves out. ``resumed`` goes on
from a checkpoint. ``accumulated`` alone makes a step of two batches: axolotl averages their means.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from smoke_tests.trainers import demands, hugging_face, tiny, trainer_faults
from smoke_tests.trainers.axolotl_checks import FAULTS

from smoke_tests import training
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.trainers import fp64

ROW_LIMIT = 320
TEMPLATE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '<end>' }}{% endfor %}"


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        # "mpt" in a path is a model of MPT to axolotl
        with tempfile.TemporaryDirectory(prefix="axolotl-") as name, _own_attention(family):
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, FAULTS, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    whole = "whole" in check["layout"]
    tiny.write_lines(folder / "rows.jsonl", [_line(*parts, whole=whole) for parts in tiny.split_rows()])
    config = _config(check, folder)
    hugging_face.keep_options(report, folder, {"train.yaml": config}, command="axolotl train train.yaml")
    caught = hugging_face.train(lambda: _start(config, folder), trainer_faults.FAULTS.get(fault))
    logged = hugging_face.demand_training(check, caught, report, _rows(whole=whole), folder)
    if check["mode"].startswith("resumed"):
        again = {**config, "resume_from_checkpoint": hugging_face.checkpoint(folder)}
        put = trainer_faults.RESUMED_FAULTS.get(fault)
        hugging_face.demand_resumption(lambda: _start(again, folder), caught, put)
    if check["mode"] == "command":
        file = _write_config({**config, "output_dir": str(folder / "command")}, folder)
        seen = hugging_face.losses_of_command(["axolotl", "train", file], folder / "command")
        demands.demand_same_losses(seen, logged, "with the command")


def _line(prompt: str, completion: str, *, whole: bool) -> dict[str, Any]:
    if whole:
        return {"text": prompt + completion}
    return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]}


def _config(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    layout, mode = check["layout"], check["mode"]
    whole, packed, adapted = "whole" in layout, "packed" in layout, demands.is_adapted(check)
    batches = hugging_face.ACCUMULATED if mode == "accumulated" else 1
    made = hugging_face.options(check, folder)
    shared = ("output_dir", "learning_rate", "max_grad_norm", "max_steps", "bf16", "logging_steps", "save_steps")
    messages = {"type": "chat_template", "chat_template": "jinja", "chat_template_jinja": TEMPLATE}
    adapters = {
        "adapter": "qlora" if mode == "qlora" else "lora",
        "load_in_4bit": mode == "qlora",
        "lora_r": hugging_face.RANK,
        "lora_alpha": hugging_face.ALPHA,
        "lora_target_modules": hugging_face.TARGETS,
    }
    return {
        **{name: made[name] for name in shared},
        "base_model": str(folder / "model"),
        "datasets": [
            {
                "path": str(folder / "rows.jsonl"),
                "ds_type": "json",
                **({"type": "completion"} if whole else messages),
            }
        ],
        "dataset_prepared_path": str(folder / "prepared"),
        "sequence_len": ROW_LIMIT,
        "micro_batch_size": 1 if packed else hugging_face.BATCH * hugging_face.ACCUMULATED // batches,
        "gradient_accumulation_steps": batches,
        "dataset_num_proc": 1,
        "optimizer": "adamw_torch",
        "lr_scheduler": "constant",
        "weight_decay": 0.0,
        "save_strategy": "steps",
        "attn_implementation": SETTINGS[check["setting"]].implementation,
        "float32": check["dtype"] == "fp32",
        "tf32": False,
        **({"sample_packing": True, "pad_to_sequence_len": True} if packed else {}),
        **({} if mode == "uncheckpointed" else {"gradient_checkpointing": True}),
        **({**adapters, **_kernels()} if adapted else {}),
    }


def _kernels() -> dict[str, bool]:
    """Leave out axolotl's Triton kernels for adapters, which it takes unasked and which need a GPU, on a CPU."""
    parts = ("mlp", "qkv", "o", "embedding") if training.device_here().type == "cpu" else ()
    return {f"lora_{part}_kernel": False for part in parts}


@contextlib.contextmanager
def _own_attention(family: str) -> Iterator[None]:
    """Put the class of attention back as transformers has it.

    For adapters axolotl replaces its ``forward`` by one that wants their functions, for the rest of the process:
    "'Qwen3Attention' object has no attribute 'apply_qkv'" in the next training, if that is one of all weights.
    """
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    kind = getattr(module, f"{family.capitalize()}Attention")
    before = dict(vars(kind))
    try:
        yield
    finally:
        for name, value in list(vars(kind).items()):
            if name not in before:
                delattr(kind, name)
            elif value is not before[name]:
                setattr(kind, name, before[name])


def _write_config(config: dict[str, Any], folder: Path) -> str:
    file = folder / "train.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return str(file)


def _start(config: dict[str, Any], folder: Path) -> None:
    """What ``axolotl train FILE`` calls, in this process."""
    os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"  # it sends its configuration to its makers when it is imported
    from accelerate import PartialState
    from axolotl.cli.train import do_cli

    PartialState(cpu=training.device_here().type == "cpu")  # it holds one, which must not be without its contents
    with mock.patch.object(sys, "argv", ["axolotl"]):
        do_cli(config=_write_config(config, folder))


def _rows(*, whole: bool) -> list[fp64.Row]:
    """The rows as the template, or its type ``completion``, lays them out."""
    if whole:
        return [(row, tiny.targets(row, 0)) for row in tiny.rows()]
    rows = []
    for prompt, completion in tiny.split_rows():
        asked = [*tiny.tokens_of(f"user: {prompt}"), tiny.END, *tiny.tokens_of("assistant: ")]
        tokens = [*asked, *tiny.tokens_of(completion), tiny.END]
        rows.append((tokens, tiny.targets(tokens, len(asked))))
    return rows
