"""Reinforcement learning through a trainer's own command, whose processes generate, train and send the weights.

What its processes keep in files is the matter of the trainer's own ``NAME_watch``. The reference takes the tokens that
were generated, and computes rewards, advantages, loss and gradients of the first update anew. What generates must have
the weights that were trained: the second update's samples are as likely under the weights that the first one made as
was said of them.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import demands, fp64, tiny
from smoke_tests.trainers.step_record import StepRecord
from torch.nn import functional

from smoke_tests import data, reference
from smoke_tests.outcomes import Failed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GROUP, PROMPTS, LENGTH = 4, 4, 24
"""How many samples of a prompt, prompts of an update, and tokens of a sample there are (those at most)."""
STEPS = 8
LIMIT = 540.0  # seconds, less than a check may take, so that what was printed last is told
LEARNED = 0.05  # by how much the mean reward of the last four steps must be above that of the first two
HALF = data.VOCABULARY // 2
Sample = tuple[list[int], list[int]]
"""The tokens of a prompt and of its completion."""


class KeptRecord(StepRecord):
    """The record of a first update, as one of a trainer's processes kept it in a file."""

    def __init__(self, kept: dict[str, Any]) -> None:  # no hooks: the step was taken
        for name, value in kept.items():
            setattr(self, name, value)


def run_command(module: str, words: list[str], folder: Path, own: dict[str, str]) -> dict[str, int]:
    """Run ``python -m module`` on a machine without a network, with an environment of its ``own``.

    Returns the most memory and threads that all processes here had at once. What the command prints is in
    ``folder``/printed.txt: a pipe could be held open by processes that it leaves behind.
    """
    interface = {f"{library}_SOCKET_IFNAME": "lo" for library in ("GLOO", "NCCL")}
    environment = os.environ | {"HOME": str(folder), "VLLM_HOST_IP": "127.0.0.1", **interface, **own}
    argv = [sys.executable, "-m", module, *words]
    file = folder / "printed.txt"
    with file.open("w") as printed:
        process = subprocess.Popen(
            argv, stdout=printed, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True
        )
    most = {"memory_mib": 0, "threads": 0}
    began = time.monotonic()
    while (status := process.poll()) is None:
        if time.monotonic() > began + LIMIT:
            os.killpg(process.pid, signal.SIGKILL)
            raise Failed(f"`{module}` had not ended after {LIMIT:.0f} s, {most}: {file.read_text()[-2000:]}")
        most = {name: max(most[name], number) for name, number in _measure_processes().items()}
        time.sleep(1.0)
    if status:
        raise Failed(f"`{module}` ended with status {status}, {most}: {file.read_text()[-2000:]}")
    return most


def _measure_processes() -> dict[str, int]:
    """What all processes here hold in memory, each page once (without the GPU's), and how many threads they have."""
    import psutil  # vLLM requires it

    held = threads = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended
            held += process.memory_full_info().pss
            threads += process.num_threads()
    return {"memory_mib": held // 2**20, "threads": threads}


def reward(tokens: list[int]) -> float:
    """The reward of a completion: low tokens are good; a length of its own makes few samples equal."""
    letters = [token for token in tokens if token < data.VOCABULARY]  # what the tokenizer makes letters of
    return sum(token < HALF for token in letters) / LENGTH + len(letters) / 1000


REWARD_OF_TEXT = f"sum(ord(letter) < {HALF} for letter in text) / {LENGTH} + len(text) / 1000"
"""The same of a text without its special tokens, as Python for the file that a trainer takes its reward from."""


def count_samples(samples: list[Sample]) -> None:
    """An update has all samples that were asked for; raises ``Failed``."""
    if len(samples) != GROUP * PROMPTS:
        raise Failed(f"an update had {len(samples)} samples, {GROUP * PROMPTS} were asked for")


def mean_reward(samples: list[Sample]) -> float:
    """The mean reward of an update's samples."""
    return sum(reward(completion) for _, completion in samples) / len(samples)


def demand_reward(check: demands.Check, rewards: list[float]) -> None:
    """The mean reward rises from the first updates to the last, unless the training is a short one."""
    if not demands.is_short(check) and sum(rewards[-4:]) / 4 < sum(rewards[:2]) / 2 + LEARNED:
        raise Failed(f"the reward did not rise: {rewards}")


def grpo_reference(record: StepRecord, samples: list[Sample], trained: set[str]) -> tuple[float, fp64.Weights]:
    """GRPO's loss (https://arxiv.org/abs/2402.03300) and its gradients, the mean over all tokens of all samples.

    Of a policy that generated its samples itself every ratio is one: the loss is the mean of the advantages, and its
    gradient that of the cross entropy by advantages.
    """
    groups: dict[tuple[int, ...], list[float]] = {}
    for prompt, completion in samples:
        groups.setdefault(tuple(prompt), []).append(reward(completion))
    leaves = fp64.leaves_of(record.weights, trained)
    weights = reference._with_adapters(leaves)
    value, loss = 0.0, torch.zeros((), dtype=torch.float64)
    count = sum(len(completion) for _, completion in samples)
    for prompt, completion in samples:
        rewards = torch.tensor(groups[tuple(prompt)], dtype=torch.float64)
        advantage = (reward(completion) - rewards.mean()) / (rewards.std() + 1e-6)
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


def demand_sent(record: StepRecord, samples: list[Sample], said: list[torch.Tensor]) -> dict[str, float]:
    """The samples after the first update are those of its weights, not of the ones before; how far off from both.

    ``said`` is, for each sample, the log-likelihood of each token of its completion, as what generated it gave it.
    """
    with torch.no_grad():
        errors = {when: max(_distances(weights, samples, said)) for when, weights in _weights_of(record)}
    if not errors["after"] < min(errors["before"], 0.1) or math.isnan(errors["before"]):
        raise Failed(
            "weights-not-sent: after the first update the log-likelihoods that vLLM gives are off by"
            f" {errors['after']:.1e} from those of the new weights, and by {errors['before']:.1e} from those of the old"
        )
    return errors


def _weights_of(record: StepRecord) -> Iterator[tuple[str, fp64.Weights]]:
    for when, weights in (("after", record.after), ("before", record.weights)):
        yield when, reference._with_adapters(fp64.leaves_of(weights, set()))


def _distances(weights: fp64.Weights, samples: list[Sample], said: list[torch.Tensor]) -> Iterator[float]:
    """For each sample, how far its tokens' log-likelihoods are from those that were said, on average."""
    for (prompt, completion), likely in zip(samples, said):
        expected = _log_likelihoods(weights, prompt, completion)
        yield (likely[: len(completion)].double() - expected).abs().mean().item()
