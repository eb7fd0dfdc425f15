"""TRL's DPOTrainer: pairs of a chosen and a rejected completion in a file, a DPOConfig.

Its reference is the model as it was: a copy when all weights are trained, the model without its adapters with LoRA.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import demands, fp64, hugging_face, saved_model, tiny, trainer_faults, trl_base, trl_faults
from smoke_tests.trainers.trl_checks import DPO_FAULTS
from torch.nn import functional

from smoke_tests import data, reference
from smoke_tests.outcomes import Failed

if TYPE_CHECKING:
    from smoke_tests.trainers.step_record import StepRecord

BETA = 0.1  # TRL's default
RATE = 1e-3
LEAST = 2.0
"""The loss is one of differences of sums over some thirty tokens, whose rounding in fp32 reaches 1e-6 on a GPU."""


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, DPO_FAULTS, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    _write_pairs(folder / "pairs.jsonl")
    trl_base.keep_options(check, report, folder, {"DPOConfig": _options(check, folder)})
    caught = hugging_face.train(lambda: _trainer(check, folder).train(), trl_faults.FAULTS.get(fault))
    trainer, record = caught
    before = record.steps[0].weights

    def reference_of(step: StepRecord, trained: set[str]) -> tuple[float, fp64.Weights]:
        return _reference(step, before, trained)

    hugging_face.demand_steps(check, caught, report, hugging_face.asked(check, RATE, reference_of, least=LEAST))
    hugging_face.demand_losses(check, caught)
    saved_model.demand_saved(check, trainer, record, folder, report)
    if check["mode"].startswith("resumed"):
        checkpoint = hugging_face.checkpoint(folder)
        hugging_face.demand_resumption(
            lambda: _trainer(check, folder).train(resume_from_checkpoint=checkpoint),
            caught,
            trainer_faults.RESUMED_FAULTS.get(fault),
        )


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
        lines.append({name: tiny.text(tokens) for name, tokens in parts.items()})
    tiny.write_lines(file, lines)


def _options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    return trl_base.options(check, folder) | {"learning_rate": RATE, "beta": BETA}


def _trainer(check: dict[str, Any], folder: Path) -> Any:
    from datasets import load_dataset
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(
        model=str(folder / "model"),
        args=DPOConfig(**_options(check, folder)),
        train_dataset=load_dataset("json", data_files=str(folder / "pairs.jsonl"), split="train"),
        peft_config=trl_base.adapters(check),
    )


def _reference(record: StepRecord, before: fp64.Weights, trained: set[str]) -> tuple[float, fp64.Weights]:
    """DPO's loss (https://arxiv.org/abs/2305.18290, equation 7) of the pairs that the step was given.

    Its reference has the weights ``before`` the training, without adapters.
    """
    count = len(tiny.PROMPTS)
    rows = [_pair(number)[0] for number in range(count)] + [_pair(number)[1] for number in range(count)]
    numbers = demands.rows_in(record.batches, rows)
    pairs = sorted(number for number in numbers if number < count)
    if pairs != sorted(number - count for number in numbers if number >= count):
        raise Failed(f"a step had the rows {numbers}, which are not pairs")
    if len(pairs) != hugging_face.BATCH * hugging_face.ACCUMULATED:
        raise Failed(f"a step had {len(pairs)} pairs, {hugging_face.BATCH * hugging_face.ACCUMULATED} were asked for")
    leaves = fp64.leaves_of(record.weights, trained)
    policy = reference._with_adapters(leaves)
    frozen = {name: value.double() for name, value in before.items() if ".lora_" not in name}
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
    wanted = torch.tensor(tiny.targets(row, tiny.PROMPTS[number]))
    logits = fp64.logits_of(weights, row, demands.SHAPE)
    return -functional.cross_entropy(logits, wanted, ignore_index=data.IGNORED, reduction="sum")
