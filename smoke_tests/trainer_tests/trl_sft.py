"""TRL's SFTTrainer, as its documentation starts it: a model's folder, a data set in a file, an SFTConfig.

``padded`` and ``packed`` are its two layouts, ``completion`` is a data set of prompts and completions, of which only
the latter are trained. Two batches are accumulated to a step. ``full`` trains all weights, ``lora`` adapters alone,
``qlora`` adapters on weights in four bits; all with gradient checkpointing, TRL's default, which ``uncheckpointed``
turns off. ``resumed`` goes on from a checkpoint in a second trainer. ``command`` is ``trl sft --config``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from smoke_tests.trainers import demands, hugging_face, tiny, trainer_faults, trl_base
from smoke_tests.trainers.trl_checks import SFT_FAULTS

ROW_LIMIT = 256
FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16"}


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, SFT_FAULTS, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    prompted = check["layout"] == "completion"
    tiny.write_lines(folder / "rows.jsonl", [_line(*parts, prompted=prompted) for parts in tiny.split_rows()])
    four_bits = {"BitsAndBytesConfig": FOUR_BITS} if check["mode"] == "qlora" else {}
    trl_base.keep_options(check, report, folder, {"SFTConfig": _options(check, folder), **four_bits})
    caught = hugging_face.train(lambda: _trainer(check, folder).train(), trainer_faults.FAULTS.get(fault))
    rows = [(row, tiny.targets(row, prompt if prompted else 0)) for row, prompt in zip(tiny.rows(), tiny.PROMPTS)]
    logged = hugging_face.demand_training(check, caught, report, rows, folder)
    if check["mode"].startswith("resumed"):
        checkpoint = hugging_face.checkpoint(folder)
        hugging_face.demand_resumption(
            lambda: _trainer(check, folder).train(resume_from_checkpoint=checkpoint),
            caught,
            trainer_faults.RESUMED_FAULTS.get(fault),
        )
    if check["mode"] == "command":
        demands.demand_same_losses(_losses_of_command(check, folder), logged, "with the command")


def _line(prompt: str, completion: str, *, prompted: bool) -> dict[str, str]:
    return {"prompt": prompt, "completion": completion} if prompted else {"text": prompt + completion}


def _options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    packed = check["layout"] == "packed"
    return {
        **trl_base.options(check, folder),
        "max_length": ROW_LIMIT,
        "packing": packed,
        **({"per_device_train_batch_size": 1} if packed else {}),
        **({"gradient_checkpointing": False} if check["mode"] == "uncheckpointed" else {}),
    }


def _trainer(check: dict[str, Any], folder: Path) -> Any:
    from datasets import load_dataset
    from transformers import BitsAndBytesConfig
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        model=str(folder / "model"),
        args=SFTConfig(**_options(check, folder)),
        train_dataset=load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train"),
        peft_config=trl_base.adapters(check),
        **({"quantization_config": BitsAndBytesConfig(**FOUR_BITS)} if check["mode"] == "qlora" else {}),
    )


def _losses_of_command(check: dict[str, Any], folder: Path) -> list[float]:
    """The losses of ``trl sft --config FILE`` with the same options, from the state that it saves."""
    made = _options(check, folder)
    model_options = made.pop("model_init_kwargs")
    config = {
        **made,
        **model_options,
        "output_dir": str(folder / "command"),
        "model_name_or_path": str(folder / "model"),
        "datasets": [{"path": "json", "data_files": str(folder / "rows.jsonl")}],
        "save_steps": hugging_face.STEPS,
    }
    (folder / "sft.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return hugging_face.losses_of_command(["trl", "sft", "--config", str(folder / "sft.yaml")], folder / "command")
