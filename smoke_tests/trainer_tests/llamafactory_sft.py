"""LLaMA-Factory's supervised fine-tuning, as ``llamafactory-cli train FILE`` starts it, on rows in the form of alpaca.

``padded`` trains the completions alone, ``whole`` (its ``train_on_prompt``) the prompts too. ``neat-packed`` is its
``neat_packing``, ``neat-packed-whole`` is both; ``packed`` is its ``packing`` alone. ``full``, ``lora``, ``qlora`` as
TRL's, all with gradient checkpointing, its default, which ``uncheckpointed`` turns off. ``resumed`` goes on from a
checkpoint.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from smoke_tests.trainers import demands, hugging_face, tiny, trainer_faults
from smoke_tests.trainers.llamafactory_checks import FAULTS

if TYPE_CHECKING:
    from smoke_tests.trainers import fp64

ROW_LIMIT = 320
SETTINGS = {"eager": "disabled", "sdpa": "sdpa", "fa2": "fa2"}
"""What its setting ``flash_attn`` calls each setting."""


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, FAULTS, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    lines = [{"instruction": prompt, "input": "", "output": completion} for prompt, completion in tiny.split_rows()]
    tiny.write_lines(folder / "rows.json", lines)
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}), encoding="utf-8")
    config = _config(check, folder)
    hugging_face.keep_options(report, folder, {"train.yaml": config}, command="llamafactory-cli train train.yaml")
    caught = hugging_face.train(lambda: _start(config, folder), trainer_faults.FAULTS.get(fault))
    logged = hugging_face.demand_training(check, caught, report, _rows(prompts="whole" in check["layout"]), folder)
    if check["mode"].startswith("resumed"):
        again = {**config, "resume_from_checkpoint": hugging_face.checkpoint(folder)}
        put = trainer_faults.RESUMED_FAULTS.get(fault)
        hugging_face.demand_resumption(lambda: _start(again, folder), caught, put)
    if check["mode"] == "command":
        file = _write_config({**config, "output_dir": str(folder / "command")}, folder)
        seen = hugging_face.losses_of_command(["llamafactory-cli", "train", file], folder / "command")
        demands.demand_same_losses(seen, logged, "with the command")


def _config(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    layout, mode = check["layout"], check["mode"]
    packed, adapted = "packed" in layout, demands.is_adapted(check)
    adapters = {
        "lora_rank": hugging_face.RANK,
        "lora_alpha": hugging_face.ALPHA,
        "lora_target": ",".join(hugging_face.TARGETS),
    }
    return {
        **hugging_face.options(check, folder),
        "stage": "sft",
        "do_train": True,
        "model_name_or_path": str(folder / "model"),
        "cache_dir": str(folder / "cache"),
        "dataset": "rows",
        "dataset_dir": str(folder),
        "template": "default",
        "cutoff_len": ROW_LIMIT,
        "flash_attn": SETTINGS[check["setting"]],
        "finetuning_type": "lora" if adapted else "full",
        **(adapters if adapted else {}),
        **({"quantization_bit": 4, "quantization_method": "bnb"} if mode == "qlora" else {}),
        **({"packing": True, "per_device_train_batch_size": 1} if packed else {}),
        **({"neat_packing": True} if layout.startswith("neat-packed") else {}),
        **({"train_on_prompt": True} if "whole" in layout else {}),
        **({"disable_gradient_checkpointing": True} if mode == "uncheckpointed" else {}),
    }


def _write_config(config: dict[str, Any], folder: Path) -> str:
    file = folder / "train.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return str(file)


def _start(config: dict[str, Any], folder: Path) -> None:
    """What ``llamafactory-cli train FILE`` calls, in this process."""
    from llamafactory.train.tuner import run_exp

    with mock.patch.object(sys, "argv", ["llamafactory-cli", _write_config(config, folder)]):
        run_exp()


def _rows(*, prompts: bool) -> list[fp64.Row]:
    """The rows as its template ``default`` lays them out; the last newline follows the end token, and is trained."""
    rows = []
    for prompt, completion in tiny.split_rows():
        asked = [*tiny.tokens_of(f"Human: {prompt}"), tiny.END, *tiny.tokens_of("\nAssistant:")]
        tokens = [*asked, *tiny.tokens_of(completion), tiny.END, *tiny.tokens_of("\n")]
        rows.append((tokens, tiny.targets(tokens, 0 if prompts else len(asked))))
    return rows
