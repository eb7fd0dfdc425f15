"""DeepSpeed under transformers' Trainer: LoRA by peft, ZeRO's stage 1 or 2, fp16 with DeepSpeed's scaling of the loss.

``lora`` trains adapters alone, ``full`` all weights; prompts are masked. DeepSpeed's fp16 holds the weights themselves
in fp16 and a copy in fp32 in its optimizer, so that its bounds are those of ``fp16-pure``. The optimizer is torch's, as
transformers gives it where the configuration names none: DeepSpeed's own ones are compiled first. ``resumed`` goes on
from a checkpoint. ``two-groups`` is a Trainer as it comes: its optimizer has a group of weights that do not decay, of
which adapters have none, and DeepSpeed takes the empty group away. The others are rid of it before.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from smoke_tests.trainers import deepspeed_faults, deepspeed_script, demands, hugging_face, tiny
from smoke_tests.trainers.deepspeed_checks import FAULTS
from smoke_tests.trainers.deepspeed_record import EngineRecord

from smoke_tests import training
from smoke_tests.outcomes import NotRun
from smoke_tests.settings import SETTINGS

FIRST_SCALE = 12  # 2**12 rather than 2**16: the very first step must not be one that the scaling skips


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""
    if check["dtype"] == "fp16-pure" and training.device_here().type == "cpu":
        raise NotRun("DeepSpeed takes fp16 on a GPU; on a CPU that depends on the processor")
    _be_alone()

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name, mock.patch.object(hugging_face, "TrainingRecord", EngineRecord):
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, FAULTS, train)


def _be_alone() -> None:
    """Say what DeepSpeed's launcher tells the only process of a training, and where it may compile what it lacks."""
    if "MASTER_PORT" in os.environ:
        return
    os.environ["TORCH_EXTENSIONS_DIR"] = tempfile.mkdtemp()  # of a worker that ended early the lock would stay
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()})


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    lines = [{"prompt": prompt, "completion": completion} for prompt, completion in tiny.split_rows()]
    tiny.write_lines(folder / "rows.jsonl", lines)
    config = _config(check, folder)
    parts = {"TrainingArguments": config["arguments"], "from_pretrained": config["model_options"]}
    hugging_face.keep_options(report, folder, parts | ({"LoraConfig": config["lora"]} if config["lora"] else {}))
    caught = hugging_face.train(lambda: deepspeed_script.train(config), deepspeed_faults.FAULTS.get(fault))
    rows = [(row, tiny.targets(row, prompt)) for row, prompt in zip(tiny.rows(), tiny.PROMPTS)]
    hugging_face.demand_training(check, caught, report, rows, folder)
    if check["mode"].startswith("resumed"):
        again = {**config, "resumed": hugging_face.checkpoint(folder)}
        put = deepspeed_faults.RESUMED_FAULTS.get(fault)
        hugging_face.demand_resumption(lambda: deepspeed_script.train(again), caught, put)


def _config(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    half = check["dtype"] == "fp16-pure"
    adapters = {
        "r": hugging_face.RANK,
        "lora_alpha": hugging_face.ALPHA,
        "lora_dropout": 0.0,
        "target_modules": hugging_face.TARGETS,
    }
    stage = int(check["detail"].partition("/")[0][-1])
    arguments = {**hugging_face.options(check, folder), "fp16": half, "deepspeed": _deepspeed_options(stage)}
    return {
        "model": str(folder / "model"),
        "model_options": {"attn_implementation": SETTINGS[check["setting"]].implementation, "dtype": "float32"},
        "rows": str(folder / "rows.jsonl"),
        "lora": adapters if demands.is_adapted(check) else None,
        "arguments": arguments,
        "without_empty_groups": not check["mode"].startswith("two-groups"),
        "resumed": None,
    }


def _deepspeed_options(stage: int) -> dict[str, Any]:
    """DeepSpeed's own configuration; ``auto`` is what transformers fills in from its options."""
    return {
        "zero_optimization": {"stage": stage},
        "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": FIRST_SCALE},
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }
