"""TRL's SFTTrainer, as its documentation starts it: a model's folder, a data set in a file, an SFTConfig.

``padded`` and ``packed`` are its two layouts, ``completion`` is a data set of prompts and completions, of which only
the latter are trained. Two batches are accumulated to a step. ``full`` trains all weights, ``lora`` adapters alone,
``qlora`` adapters on weights in four bits; all with gradient checkpointing, TRL's default, which ``uncheckpointed``
turns off. ``resumed`` goes on from a checkpoint in a second trainer. ``command`` is ``trl sft --config``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from smoke_tests.trainers import fp64, tiny, trl_base
from smoke_tests.trainers.checks import SFT_FAULTS
from smoke_tests.trainers.step_record import StepRecord

from smoke_tests import training
from smoke_tests.outcomes import Failed

ROW_LIMIT = 256


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    trl_base.judge(check, report, {fault.name for fault in SFT_FAULTS}, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    tiny.write_rows(folder / "rows.jsonl", prompted=check["layout"] == "completion")
    trainer = _trainer(check, folder)
    record = trl_base.train(trainer, fault)
    report["losses"] = logged = trl_base.losses(trainer)
    trl_base.demand_setting(check, trainer, record, report)
    trl_base.demand_first_step(check, record, report, lambda trained: _reference(check, record, trained))
    trl_base.demand_logged(logged, record)
    training.demand_learning(logged)
    if check["mode"].startswith("resumed"):
        trl_base.demand_resumption(_trainer(check, folder), folder, logged, fault)
    if check["mode"] == "command":
        trl_base.demand_same_losses(_losses_of_command(check, folder), logged, "with the command")


def _options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    packed = check["layout"] == "packed"
    return {
        **trl_base.options(check, folder),
        "max_length": ROW_LIMIT,
        "packing": packed,
        "per_device_train_batch_size": 1 if packed else trl_base.BATCH,
        **({"gradient_checkpointing": False} if check["mode"] == "uncheckpointed" else {}),
    }


def _trainer(check: dict[str, Any], folder: Path) -> Any:
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        model=str(folder / "model"),
        args=SFTConfig(**_options(check, folder)),
        train_dataset=load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train"),
        peft_config=trl_base.adapters() if trl_base.is_adapted(check) else None,
        **({"quantization_config": _four_bits()} if check["mode"] == "qlora" else {}),
    )


def _four_bits() -> Any:
    import torch
    import transformers

    return transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )


def _reference(check: dict[str, Any], record: StepRecord, trained: set[str]) -> tuple[float, fp64.Weights]:
    """The reference's loss and gradients for the rows that the step was given."""
    numbers = trl_base.rows_in(record.batches, tiny.rows())
    wanted = trl_base.BATCH * trl_base.ACCUMULATED
    if check["layout"] != "packed" and len(numbers) != wanted:
        raise Failed(f"a step had {len(numbers)} rows, {wanted} were asked for")
    prompted = check["layout"] == "completion"
    rows = [(tiny.rows()[number], tiny.targets(number, prompted=prompted)) for number in numbers]
    return fp64.mean_loss_and_gradients(record.weights, trained, rows, trl_base.SHAPE)


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
        "save_steps": trl_base.STEPS,
    }
    (folder / "sft.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    argv = [str(Path(sys.executable).with_name("trl")), "sft", "--config", str(folder / "sft.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ | {"HOME": str(folder)})
    state = folder / "command" / f"checkpoint-{trl_base.STEPS}" / "trainer_state.json"
    if done.returncode or not state.exists():
        raise Failed(f"`trl sft` ended with status {done.returncode}: {done.stderr[-600:]}")
    history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]
