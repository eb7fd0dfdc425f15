"""ms-swift's supervised fine-tuning, as ``swift sft FILE`` starts it, with messages in a file.

``padded`` trains the answers alone, ``whole`` (its ``loss_scale`` ``all``) everything. ``packed`` is its ``packing``,
``padding-free`` its ``padding_free``: a batch's rows one after the other. ``full``, ``lora`` and ``qlora`` as TRL's,
all with gradient checkpointing, its default, which ``uncheckpointed`` turns off. ``resumed`` goes on from a checkpoint.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoke_tests.trainers import demands, hugging_face, tiny, trainer_faults
from smoke_tests.trainers.ms_swift_checks import FAULTS, PACKED_FAULTS

from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from smoke_tests.trainers import fp64

ROW_LIMIT = 320


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, (*FAULTS, *PACKED_FAULTS), train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    tiny.write_lines(folder / "rows.jsonl", [_messages(*parts) for parts in tiny.split_rows()])
    config = _config(check, folder, family)
    hugging_face.keep_options(report, folder, {"sft.yaml": config}, command="swift sft sft.yaml")
    caught = hugging_face.train(lambda: _start(config, folder), trainer_faults.FAULTS.get(fault))
    logged = hugging_face.demand_training(check, caught, report, _rows(prompts=check["layout"] == "whole"), folder)
    if check["mode"].startswith("resumed"):
        again = {**config, "resume_from_checkpoint": hugging_face.checkpoint(folder)}
        put = trainer_faults.RESUMED_FAULTS.get(fault)
        hugging_face.demand_resumption(lambda: _start(again, folder), caught, put)
    if check["mode"] == "command":
        file = _write_config({**config, "output_dir": str(folder / "command")}, folder)
        seen = hugging_face.losses_of_command(["swift", "sft", file], folder / "command")
        demands.demand_same_losses(seen, logged, "with the command")


def _messages(prompt: str, completion: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]}


def _config(check: dict[str, Any], folder: Path, family: str) -> dict[str, Any]:
    layout, mode = check["layout"], check["mode"]
    adapters = {
        "lora_rank": hugging_face.RANK,
        "lora_alpha": hugging_face.ALPHA,
        "lora_dropout": 0.0,
        "target_modules": hugging_face.TARGETS,
    }
    four_bits = {"quant_method": "bnb", "quant_bits": 4, "bnb_4bit_compute_dtype": "bfloat16"}
    return {
        "weight_decay": 0.0,  # its own default is 0.1, where transformers has none
        "adam_beta2": 0.999,  # its own default is 0.95
        **hugging_face.options(check, folder),
        "fp16": False,
        "add_version": False,
        "dataloader_num_workers": 0,
        "model": str(folder / "model"),
        "model_type": family,
        "torch_dtype": PRECISIONS[check["dtype"]].weights,
        "template": "chatml",
        "dataset": [str(folder / "rows.jsonl")],
        "split_dataset_ratio": 0,
        "load_from_cache_file": False,
        "check_model": False,  # else it asks ModelScope whether the model is the newest: 21 s without a network
        "max_length": ROW_LIMIT,
        "attn_impl": SETTINGS[check["setting"]].implementation,
        "tuner_type": "lora" if demands.is_adapted(check) else "full",
        **(adapters if demands.is_adapted(check) else {}),
        **(four_bits if mode == "qlora" else {}),
        **({"packing": True, "per_device_train_batch_size": 1} if layout == "packed" else {}),
        **({"padding_free": True} if layout == "padding-free" else {}),
        **({"loss_scale": "all"} if layout == "whole" else {}),
        **({"gradient_checkpointing": False} if mode == "uncheckpointed" else {}),
    }


def _write_config(config: dict[str, Any], folder: Path) -> str:
    file = folder / "sft.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return str(file)


def _start(config: dict[str, Any], folder: Path) -> None:
    """What ``swift sft FILE`` calls, in this process."""
    os.environ["MODELSCOPE_CACHE"] = str(folder / "modelscope")
    from swift.cli.main import parse_yaml_args
    from swift.pipelines import sft_main

    words = [_write_config(config, folder)]
    parse_yaml_args(words)
    sft_main(words)


def _rows(*, prompts: bool) -> list[fp64.Row]:
    """The rows as its template ``chatml`` lays them out."""
    rows = []
    for prompt, completion in tiny.split_rows():
        asked = tiny.tokens_of(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n")
        tokens = [*asked, *tiny.tokens_of(f"{completion}<|im_end|>\n")]
        rows.append((tokens, tiny.targets(tokens, 0 if prompts else len(asked))))
    return rows
