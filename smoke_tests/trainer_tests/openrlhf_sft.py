"""OpenRLHF's supervised fine-tuning, as ``deepspeed --module openrlhf.cli.train_sft`` starts it, on rows in a file.

``padded`` trains the completions alone, as its SFTDataset lays rows out; ``whole`` is its ``pretrain_mode``, which
trains all tokens; ``packed`` is its ``packing_samples``, which takes the padding out for flash attention. ``full``
trains all weights, ``lora`` its adapters. It has no training in fp32: weights are bf16 and DeepSpeed's optimizer holds
a copy in fp32. ``resumed`` goes on from its checkpoint.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from smoke_tests.trainers import demands, hugging_face, openrlhf_faults, openrlhf_place, tiny
from smoke_tests.trainers.openrlhf_checks import PACKED_FAULTS, SFT_FAULTS
from smoke_tests.trainers.openrlhf_record import ActorRecord

from smoke_tests import training
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from smoke_tests.trainers import fp64

STEPS, SAVED = 8, 5  # in the midst of an epoch: a trainer that begins it again has other rows
EPOCHS = STEPS * hugging_face.BATCH * hugging_face.ACCUMULATED // len(tiny.LENGTHS)
TEMPLATE = "User: {}\nAssistant: "  # its default
MODULE = "openrlhf.cli.train_sft"


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name, openrlhf_place.alone(report):
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, (*SFT_FAULTS, *PACKED_FAULTS), train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    lines = [{"input": prompt, "output": completion} for prompt, completion in tiny.split_rows()]
    if check["layout"] == "whole":
        lines = [{"input": line["input"] + line["output"]} for line in lines]
    tiny.write_lines(folder / "rows.jsonl", lines)
    options = _options(check, folder)
    hugging_face.keep_options(report, folder, {"options": options}, command=f"deepspeed --module {MODULE}")
    trained = _Training(options, fault)
    record = trained.record
    report["losses"] = trained.losses
    demands.demand_setting(check, trained.implementation, record, report)
    rows = _rows(whole=check["layout"] == "whole")
    count = hugging_face.BATCH * hugging_face.ACCUMULATED
    demands.demand_first_step(check, record, report, lambda names: demands.step_reference(record, names, rows, count))
    demands.demand_logged(trained.losses, record)
    demands.demand_learning(check, trained.losses)
    if check["mode"].startswith("resumed"):
        again = _Training(options | {"ckpt.load_enable": True}, fault)
        demands.demand_same_losses(again.losses, trained.losses[SAVED:], "after the checkpoint", bf16=True)


class _Training:
    """A training by the command, in this process: its losses, and the record of its first step."""

    def __init__(self, options: dict[str, Any], fault: str) -> None:
        from openrlhf.trainer.sft_trainer import SFTTrainer
        from openrlhf.utils.deepspeed import DeepspeedStrategy

        self.losses: list[float] = []
        self.implementation = ""
        fit, prepare, log = SFTTrainer.fit, DeepspeedStrategy.prepare, SFTTrainer.save_logs_and_checkpoints

        def prepared(strategy: Any, *pairs: Any) -> Any:
            for actor, _ in pairs:
                hugging_face.fill_adapters(actor.model)
                openrlhf_faults.put_into_model(fault, actor.model)
            return prepare(strategy, *pairs)

        def fitted(trainer: Any, *words: Any, **known: Any) -> Any:
            self.implementation = str(trainer.model.model.module.config._attn_implementation)
            put = openrlhf_faults.put_into_resumed if "ckpt.load_enable" in options else openrlhf_faults.put_into_sft
            put(fault, trainer)
            self.record = ActorRecord(trainer.model, type(trainer).__name__, training.device_here())
            self.record.begin()
            return fit(trainer, *words, **known)

        def logged(trainer: Any, *words: Any) -> Any:
            self.losses.append(words[3]["loss_mean"])
            return log(trainer, *words)

        with (
            mock.patch.object(SFTTrainer, "fit", fitted),
            mock.patch.object(SFTTrainer, "save_logs_and_checkpoints", logged),
            mock.patch.object(DeepspeedStrategy, "prepare", prepared),
        ):
            openrlhf_place.call_module(MODULE, options)


def _options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    os.environ["HF_DATASETS_CACHE"] = str(folder / "datasets")
    adapted, rows = demands.is_adapted(check), len(tiny.LENGTHS)
    adapters = {"ds.lora.rank": hugging_face.RANK, "ds.lora.alpha": hugging_face.ALPHA}
    short = {"train.max_epochs": 1, "data.max_samples": hugging_face.BATCH * hugging_face.ACCUMULATED}
    long = {"train.max_epochs": EPOCHS, "data.max_samples": rows}
    return {
        "model.model_name_or_path": str(folder / "model"),
        "data.dataset": str(folder / "rows.jsonl"),
        "data.input_key": "input",
        **({"model.pretrain_mode_enable": True} if check["layout"] == "whole" else {"data.output_key": "output"}),
        **(short if demands.is_short(check) else long),
        "train.micro_batch_size": hugging_face.BATCH,
        "train.batch_size": hugging_face.BATCH * hugging_face.ACCUMULATED,
        "ds.attn_implementation": SETTINGS[check["setting"]].implementation,
        **({"ds.packing_samples": True} if check["layout"] == "packed" else {}),
        **(adapters if adapted else {}),
        "adam.lr": 1e-2 if adapted else 4e-3,
        "lr_scheduler": "constant",
        "max_norm": 0.0,
        "ckpt.output_dir": str(folder / "out"),
        "ckpt.path": str(folder / "checkpoints"),
        **({"model.gradient_checkpointing_enable": True} if check["mode"] == "checkpointed" else {}),
        **({"ckpt.save_steps": SAVED} if check["mode"].startswith("resumed") else {}),
    }


def _rows(*, whole: bool) -> list[fp64.Row]:
    """The rows as its SFTDataset lays them out; it puts a space before the end token that it adds."""
    rows = []
    for prompt, completion in tiny.split_rows():
        if whole:
            tokens = tiny.tokens_of(prompt + completion)
            rows.append((tokens, tiny.targets(tokens, 0)))
            continue
        asked = TEMPLATE.format(prompt)
        tokens = [*tiny.tokens_of(f"{asked}{completion}".rstrip("\n")), *tiny.tokens_of(" "), tiny.END]
        rows.append((tokens, tiny.targets(tokens, len(asked))))
    return rows
