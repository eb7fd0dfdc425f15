"""verl's GRPO, as ``python -m verl.trainer.main_ppo`` starts it: Ray's processes, vLLM's generation, FSDP's update.

The command is a process with children of its own; what they keep for the checks is ``verl_watch``'s. The reference
takes the tokens that vLLM generated, and computes rewards, advantages, loss and gradients anew. What generates must
have the weights that were trained: the second update's samples are as likely under the weights that the first one made
as vLLM says.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import demands, fp64, hugging_face, tiny, verl_place, verl_sft
from smoke_tests.trainers.step_record import StepRecord
from smoke_tests.trainers.verl_checks import GRPO_FAULTS
from torch.nn import functional

import smoke_tests
from smoke_tests import data, reference, training
from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "verl.trainer.main_ppo"
GROUP, PROMPTS, LENGTH = 4, 4, 24
STEPS = 8
LIMIT = 540.0  # seconds, less than a check may take, so that what was printed last is told
LEARNED = 0.05  # by how much the mean reward of the last four steps must be above that of the first two
HALF = data.VOCABULARY // 2
REWARD = f"""\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **known):
    return sum(ord(letter) < {HALF} for letter in solution_str) / 24 + len(solution_str) / 1000
"""
"""The reward as verl takes it from a file: low tokens are good; a length of its own makes few samples equal."""
END = "<|im_end|>"
Sample = tuple[list[int], list[int]]
"""The tokens of a prompt and of its completion."""


class KeptRecord(StepRecord):
    """The record of a first update, as one of verl's processes kept it in a file."""

    def __init__(self, kept: dict[str, Any]) -> None:  # no hooks: the step was taken
        for name, value in kept.items():
            setattr(self, name, value)


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the command, and ask of it what README.md says."""
    if training.device_here().type == "cpu":
        raise NotRun("verl's GRPO generates with vLLM, whose wheel has kernels for GPUs only")

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, {fault.name for fault in GRPO_FAULTS}, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    _write_files(folder, family)
    options = _options(check, folder, steps=2 if demands.is_short(check) else STEPS)
    hugging_face.keep_options(report, folder, {"options": options}, command=f"python -m {MODULE}")
    printed = _run_command(options, folder, fault)
    kept, later = (torch.load(folder / f"update-{number}.pt", weights_only=False) for number in (0, 1))
    record = KeptRecord(kept)
    report["figures"] = {"rewards": verl_place.numbers_in(printed, "critic/rewards/mean")}
    demands.demand_setting(check, kept["implementation"], record, report)
    own = samples_of(kept["samples"])
    if len(own) != GROUP * PROMPTS:
        raise Failed(f"an update had {len(own)} samples, {GROUP * PROMPTS} were asked for")
    demands.demand_first_step(check, record, report, lambda trained: _reference(record, own, trained), least=1.0)
    report["figures"]["generated"] = _demand_sent(record, later["samples"])
    rewards = report["figures"]["rewards"]
    if not demands.is_short(check) and sum(rewards[-4:]) / 4 < sum(rewards[:2]) / 2 + LEARNED:
        raise Failed(f"the reward did not rise: {rewards}")


def _write_files(folder: Path, family: str) -> None:
    import pandas as pd

    tiny.write_model(folder / "model", family)
    verl_sft.write_template(folder / "model")
    for file in (folder / "model").glob("*token*.json"):  # verl looks for the end token of the family's tokenizer
        file.write_text(file.read_text(encoding="utf-8").replace("<end>", END), encoding="utf-8")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    lines = [
        {
            "data_source": "low-tokens",
            "prompt": [{"role": "user", "content": prompt}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number, (prompt, _) in enumerate(tiny.split_rows())
    ]
    pd.DataFrame(lines).to_parquet(folder / "prompts.parquet")


def _options(check: dict[str, Any], folder: Path, *, steps: int) -> dict[str, Any]:
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    attention = SETTINGS[check["setting"]].implementation
    return {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": str(folder / "prompts.parquet"),
        "data.val_files": str(folder / "prompts.parquet"),
        "data.train_batch_size": PROMPTS,
        "data.max_prompt_length": 96,
        "data.max_response_length": LENGTH,
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": str(folder / "model"),
        "actor_rollout_ref.model.external_lib": "smoke_tests.trainers.verl_watch",
        "+actor_rollout_ref.model.override_config.attn_implementation": attention,
        f"{actor}.ppo_mini_batch_size": PROMPTS,
        f"{actor}.ppo_micro_batch_size_per_gpu": GROUP,
        f"{actor}.optim.lr": 2e-3,
        f"{actor}.optim.clip_grad": 1e9,
        f"{actor}.grad_clip": 1e9,
        f"+{actor}.fsdp_config.mixed_precision": {f"{name}_dtype": "fp32" for name in ("param", "reduce", "buffer")},
        f"{rollout}.name": "vllm",
        f"{rollout}.n": GROUP,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.gpu_memory_utilization": 0.2,
        f"{rollout}.enforce_eager": True,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": GROUP,
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes": 64,
        f"{rollout}.agent.num_workers": 1,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": str(folder / "reward.py"),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.total_epochs": STEPS,
        "trainer.total_training_steps": steps,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.default_local_dir": str(folder / "out"),
        "trainer.logger": ["console"],
        "ray_kwargs.ray_init.num_cpus": 32,  # of Ray's counting: each of its processes wants one, and most wait
        "hydra.run.dir": str(folder),
        "hydra.output_subdir": None,
        "hydra/job_logging": "disabled",
        "hydra/hydra_logging": "disabled",
    }


def _run_command(options: dict[str, Any], folder: Path, fault: str) -> str:
    """What ``python -m verl.trainer.main_ppo`` prints, on a machine without a network."""
    environment = os.environ | {
        "HOME": str(folder),
        "PYTHONPATH": str(Path(smoke_tests.__file__).parents[1]),
        "HYDRA_FULL_ERROR": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        **{f"{library}_SOCKET_IFNAME": "lo" for library in ("GLOO", "NCCL")},
        verl_place.FOLDER: str(folder),
        verl_place.FAULT: fault,
    }
    words = [sys.executable, "-m", MODULE, *verl_place.words_of(options)]
    file = folder / "printed.txt"  # and no pipe, which Ray's processes could hold open
    with file.open("w") as printed:
        process = subprocess.Popen(
            words, stdout=printed, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True
        )
    try:
        status = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise Failed(f"`{MODULE}` had not ended after {LIMIT:.0f} s: {file.read_text()[-2000:]}") from None
    if status:
        raise Failed(f"`{MODULE}` ended with status {status}: {file.read_text()[-2000:]}")
    return file.read_text()


def samples_of(rows: dict[str, list[torch.Tensor]]) -> list[Sample]:
    """The samples of an update: prompts, and completions as far as they count."""
    return [
        (prompt.tolist(), answer[mask.bool()].tolist())
        for prompt, answer, mask in zip(rows["prompts"], rows["responses"], rows["response_mask"])
    ]


def _reward(tokens: list[int]) -> float:
    letters = [token for token in tokens if token < data.VOCABULARY]  # what the tokenizer makes letters of
    return sum(token < HALF for token in letters) / 24 + len(letters) / 1000


def _reference(record: StepRecord, samples: list[Sample], trained: set[str]) -> tuple[float, fp64.Weights]:
    """GRPO's loss (https://arxiv.org/abs/2402.03300), the mean over all tokens of all samples, verl's default.

    Of a policy that generated its samples itself every ratio is one: the loss is the mean of the advantages, and its
    gradient that of the cross entropy by advantages.
    """
    groups: dict[tuple[int, ...], list[float]] = {}
    for prompt, completion in samples:
        groups.setdefault(tuple(prompt), []).append(_reward(completion))
    leaves = fp64.leaves_of(record.weights, trained)
    weights = reference._with_adapters(leaves)
    value, loss = 0.0, torch.zeros((), dtype=torch.float64)
    count = sum(len(completion) for _, completion in samples)
    for prompt, completion in samples:
        rewards = torch.tensor(groups[tuple(prompt)], dtype=torch.float64)
        advantage = (_reward(completion) - rewards.mean()) / (rewards.std() + 1e-6)
        value -= advantage.item() * len(completion) / count
        loss = loss - advantage * _log_likelihoods(weights, prompt, completion).sum() / count
    loss.backward()
    if (embedded := leaves["model.embed_tokens.weight"].grad) is not None:
        embedded[tiny.PAD] = 0.0  # torch gives the filling no gradient, and a policy may generate it
    return value, {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def _log_likelihoods(weights: fp64.Weights, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """How likely each token of a completion is, in fp64: its logarithm."""
    tokens = [*prompt, *completion]
    logits = fp64.logits_of(weights, tokens, demands.SHAPE)[len(prompt) - 1 : -1]
    return -functional.cross_entropy(logits, torch.tensor(completion), reduction="none")


def _demand_sent(record: StepRecord, rows: dict[str, list[torch.Tensor]]) -> dict[str, float]:
    """VLLM's samples after the first update are those of its weights, not of the ones before; how far off from both."""
    with torch.no_grad():
        errors = {when: max(_distances(weights, rows)) for when, weights in _weights_of(record)}
    if not errors["after"] < min(errors["before"], 0.1) or math.isnan(errors["before"]):
        raise Failed(
            "weights-not-sent: after the first update the log-likelihoods that vLLM gives are off by"
            f" {errors['after']:.1e} from those of the new weights, and by {errors['before']:.1e} from those of the old"
        )
    return errors


def _weights_of(record: StepRecord) -> Iterator[tuple[str, fp64.Weights]]:
    for when, weights in (("after", record.after), ("before", record.weights)):
        yield when, reference._with_adapters(fp64.leaves_of(weights, set()))


def _distances(weights: fp64.Weights, rows: dict[str, list[torch.Tensor]]) -> Iterator[float]:
    """For each sample, how far its tokens' log-likelihoods are from those that vLLM gave, on average."""
    for (prompt, completion), said in zip(samples_of(rows), rows["rollout_log_probs"]):
        expected = _log_likelihoods(weights, prompt, completion)
        yield (said[: len(completion)].double() - expected).abs().mean().item()
