"""TRL's DPOTrainer: pairs of a chosen and a rejected completion in a file, a DPOConfig.

Its reference is the model as it was: a copy when all weights are trained, the model without its adapters with LoRA.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from smoke_tests.trainers import fp64, tiny, trl_base
from smoke_tests.trainers.checks import DPO_FAULTS
from smoke_tests.trainers.step_record import StepRecord
from torch.nn import functional

from smoke_tests import data, reference, training
from smoke_tests.outcomes import Failed

BETA = 0.1  # TRL's default


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    trl_base.judge(check, report, {fault.name for fault in DPO_FAULTS}, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    _write_pairs(folder / "pairs.jsonl")
    trainer = _trainer(check, folder)
    record = trl_base.train(trainer, fault)
    report["losses"] = logged = trl_base.losses(trainer)
    trl_base.demand_setting(check, trainer, record, report)
    trl_base.demand_first_step(check, record, report, lambda trained: _reference(record, trained))
    trl_base.demand_logged(logged, record)
    training.demand_learning(logged)
    if check["mode"].startswith("resumed"):
        trl_base.demand_resumption(_trainer(check, folder), folder, logged, fault)


def _pair(number: int) -> tuple[list[int], list[int]]:
    """The tokens of a chosen and of a rejected row; they share the prompt, and differ in length."""
    chosen = tiny.rows()[number]
    prompt = chosen[: tiny.PROMPTS[number]]
    other = data.sequence(number + 5, 20 + 3 * number)
    return chosen, [*prompt, *other, tiny.END]


def _write_pairs(file: Path) -> None:
    lines = []
    for number, prompt in enumerate(tiny.PROMPTS):
        chosen, rejected = _pair(number)
        parts = {"prompt": chosen[:prompt], "chosen": chosen[prompt:-1], "rejected": rejected[prompt:-1]}
        lines.append(json.dumps({name: tiny.text(tokens) for name, tokens in parts.items()}) + "\n")
    file.write_text("".join(lines), encoding="utf-8")


def _trainer(check: dict[str, Any], folder: Path) -> Any:
    from datasets import load_dataset
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(
        model=str(folder / "model"),
        args=DPOConfig(**trl_base.options(check, folder) | {"learning_rate": 1e-3, "beta": BETA}),
        train_dataset=load_dataset("json", data_files=str(folder / "pairs.jsonl"), split="train"),
        peft_config=trl_base.adapters() if trl_base.is_adapted(check) else None,
    )


def _reference(record: StepRecord, trained: set[str]) -> tuple[float, fp64.Weights]:
    """DPO's loss (https://arxiv.org/abs/2305.18290, equation 7) of the pairs that the step was given."""
    count = len(tiny.PROMPTS)
    rows = [_pair(number)[0] for number in range(count)] + [_pair(number)[1] for number in range(count)]
    numbers = trl_base.rows_in(record.batches, rows)
    pairs = sorted(number for number in numbers if number < count)
    if pairs != sorted(number - count for number in numbers if number >= count):
        raise Failed(f"a step had the rows {numbers}, which are not pairs")
    if len(pairs) != trl_base.BATCH * trl_base.ACCUMULATED:
        raise Failed(f"a step had {len(pairs)} pairs, {trl_base.BATCH * trl_base.ACCUMULATED} were asked for")
    leaves = fp64.leaves_of(record.weights, trained)
    policy = reference._with_adapters(leaves)
    frozen = {name: value.detach() for name, value in leaves.items() if ".lora_" not in name}
    loss = torch.zeros((), dtype=torch.float64)
    for number in pairs:
        ratios = [
            _log_probability(policy, row, number) - _log_probability(frozen, row, number) for row in _pair(number)
        ]
        loss = loss - functional.logsigmoid(BETA * (ratios[0] - ratios[1])) / len(pairs)
    loss.backward()
    return loss.item(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def _log_probability(weights: fp64.Weights, row: list[int], number: int) -> torch.Tensor:
    """The log probability of a row's completion, its end token among it."""
    wanted = torch.tensor([data.IGNORED] * (tiny.PROMPTS[number] - 1) + data.targets(row)[tiny.PROMPTS[number] - 1 :])
    logits = fp64.logits_of(weights, row, trl_base.SHAPE)
    return -functional.cross_entropy(logits, wanted, ignore_index=data.IGNORED, reduction="sum")
