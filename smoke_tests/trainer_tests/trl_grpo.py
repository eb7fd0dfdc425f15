"""TRL's GRPOTrainer: prompts in a file, a reward function, a GRPOConfig; completions by its own generation.

The reference takes the tokens that the trainer generated, and computes rewards, advantages, loss and gradients anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import demands, fp64, hugging_face, saved_model, tiny, trl_base, trl_faults
from smoke_tests.trainers.trl_checks import GRPO_FAULTS

from smoke_tests import data, reference
from smoke_tests.outcomes import Failed

if TYPE_CHECKING:
    from smoke_tests.trainers.step_record import StepRecord

GROUP, LENGTH = 4, 24
LEARNED = 0.05  # by how much the mean reward of the last four steps must be above that of the first two
Sample = tuple[tuple[int, ...], tuple[int, ...]]
"""The tokens of a prompt and of its completion."""


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, GRPO_FAULTS, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    prompts = [tiny.text(row[:length]) for row, length in zip(tiny.rows(), tiny.PROMPTS)]
    tiny.write_lines(folder / "prompts.jsonl", [{"prompt": prompt} for prompt in prompts])
    samples: list[Sample] = []

    def put(trainer: Any) -> None:
        _watch_samples(trainer, samples)
        if fault:
            trl_faults.FAULTS[fault](trainer)

    trl_base.keep_options(check, report, folder, {"GRPOConfig": _options(check, folder)})
    caught = hugging_face.train(lambda: _trainer(check, folder).train(), put)
    trainer, record = caught
    report["figures"] = {"rewards": [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]}
    each = hugging_face.ACCUMULATED * GROUP

    def reference_of(step: StepRecord, trained: set[str]) -> tuple[float, fp64.Weights]:
        return _reference(step, samples[step.number * each :][:each], trained)

    hugging_face.demand_steps(check, caught, report, hugging_face.asked(check, _rate(check), reference_of, least=1.0))
    saved_model.demand_saved(check, trainer, record, folder, report)
    rewards = report["figures"]["rewards"]
    if not demands.is_short(check) and sum(rewards[-4:]) / 4 < sum(rewards[:2]) / 2 + LEARNED:
        raise Failed(f"the reward did not rise: {rewards}")


def _reward(tokens: tuple[int, ...]) -> float:
    """The share of low tokens; a length of its own makes no two samples equal."""
    return sum(token < data.VOCABULARY // 2 for token in tokens) / len(tokens)


def _rewards(completion_ids: list[list[int]], **_known: Any) -> list[float]:
    return [_reward(tuple(tokens)) for tokens in completion_ids]


def _rate(check: dict[str, Any]) -> float:
    return 1e-2 if demands.is_adapted(check) else 2e-3


def _options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    return trl_base.options(check, folder) | {
        "per_device_train_batch_size": GROUP,
        "num_generations": GROUP,
        "max_completion_length": LENGTH,
        "learning_rate": _rate(check),
    }


def _trainer(check: dict[str, Any], folder: Path) -> Any:
    from datasets import load_dataset
    from trl import GRPOConfig, GRPOTrainer

    return GRPOTrainer(
        model=str(folder / "model"),
        args=GRPOConfig(**_options(check, folder)),
        reward_funcs=_rewards,
        train_dataset=load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train"),
        peft_config=trl_base.adapters(check),
    )


def _watch_samples(trainer: Any, samples: list[Sample]) -> None:
    """Fill a list with what the loss is computed of: prompts and completions, up to their end tokens."""
    plain = trainer._compute_loss

    def compute_loss(built: Any, inputs: dict[str, Any]) -> torch.Tensor:
        for prompt, mask, completion in zip(inputs["prompt_ids"], inputs["prompt_mask"], inputs["completion_ids"]):
            tokens = completion.tolist()
            ends = tokens.index(tiny.END) + 1 if tiny.END in tokens else len(tokens)
            samples.append((tuple(prompt[mask.bool()].tolist()), tuple(tokens[:ends])))
        return plain(built, inputs)

    trainer._compute_loss = compute_loss


def _reference(record: StepRecord, samples: list[Sample], trained: set[str]) -> tuple[float, fp64.Weights]:
    """GRPO's loss (https://arxiv.org/abs/2402.03300) with the mean over all tokens, as DAPO has it, TRL's default."""
    groups: dict[tuple[int, ...], list[float]] = {}
    for prompt, completion in samples:
        groups.setdefault(prompt, []).append(_reward(completion))
    if any(len(group) != GROUP for group in groups.values()):
        raise Failed(f"the groups of a step have {[len(group) for group in groups.values()]} samples, not {GROUP} each")
    leaves = fp64.leaves_of(record.weights, trained)
    weights = reference._with_adapters(leaves)
    loss, count = torch.zeros((), dtype=torch.float64), sum(len(completion) for _, completion in samples)
    for prompt, completion in samples:
        rewards = torch.tensor(groups[prompt], dtype=torch.float64)
        advantage = (_reward(completion) - rewards.mean()) / (rewards.std() + 1e-4)
        logits = fp64.logits_of(weights, [*prompt, *completion[:-1]], demands.SHAPE)[len(prompt) - 1 :]
        chosen = logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])
        loss = loss - (advantage * torch.exp(chosen - chosen.detach())).sum() / count
    loss.backward()
    if (embedded := leaves["model.embed_tokens.weight"].grad) is not None:
        embedded[tiny.PAD] = 0.0  # torch gives the filling no gradient, and a policy may generate it
    return loss.item(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
