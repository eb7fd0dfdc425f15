"""OpenRLHF's PPO, as ``python -m openrlhf.cli.train_ppo_ray`` starts it: Ray's actors, vLLM's generation, DeepSpeed.

All of it shares one GPU (``train.colocate_all``), with advantages of GRPO and no reference policy. What its processes
keep for the checks is ``openrlhf_watch``'s, what is asked of it ``rollouts``'. With ``fa2`` the samples are packed, as
its recipes do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import demands, hugging_face, openrlhf_place, openrlhf_ray, openrlhf_watch, rollouts, tiny
from smoke_tests.trainers.openrlhf_checks import COMMAND_FAULTS

import smoke_tests
from smoke_tests import training
from smoke_tests.outcomes import NotRun
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from smoke_tests.trainers.rollouts import Sample

REWARD = f"""\
import re
import torch

def reward_func(queries, prompts, labels):
    special = r"<end>|<pad>|<\\|endoftext\\|>"  # the last is what Qwen's tokenizer adds when it is loaded
    texts = [re.sub(special, "", query[len(prompt):]) for query, prompt in zip(queries, prompts)]
    rewards = torch.tensor([{rollouts.REWARD_OF_TEXT} for text in texts])
    return {{"rewards": rewards, "scores": rewards, "extra_logs": {{}}}}
"""
ROWS = 2 * rollouts.PROMPTS


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the command, and ask of it what README.md says."""
    if training.device_here().type == "cpu":
        raise NotRun("OpenRLHF's PPO generates with vLLM, whose wheel has kernels for GPUs only")

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, COMMAND_FAULTS, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    tiny.write_lines(folder / "prompts.jsonl", [{"input": prompt} for prompt, _ in tiny.split_rows()[:ROWS]])
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    options = _options(check, folder)
    hugging_face.keep_options(report, folder, {"options": options}, command=f"python -m {openrlhf_ray.MODULE}")
    words = openrlhf_place.words_of(options)
    own = openrlhf_watch.environment(folder, Path(smoke_tests.__file__).parents[1], fault)
    taken = rollouts.run_command(openrlhf_ray.MODULE, words, folder, own)
    updates = [torch.load(file, weights_only=False) for file in sorted(folder.glob("update-*.pt"))]
    samples = [_samples_of(update) for update in updates]
    rewards = [rollouts.mean_reward(these) for these in samples]
    report["figures"] = {"rewards": rewards, **taken}
    record = rollouts.KeptRecord(updates[0])
    demands.demand_setting(check, updates[0]["implementation"], record, report)
    rollouts.count_samples(samples[0])
    demands.demand_first_step(
        check, record, report, lambda trained: rollouts.grpo_reference(record, samples[0], trained), least=1.0
    )
    report["figures"]["generated"] = rollouts.demand_sent(record, samples[1], _said_of(updates[1]))
    rollouts.demand_reward(check, rewards)


def _options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    steps = 2 if demands.is_short(check) else rollouts.STEPS
    return {
        "actor.model_name_or_path": str(folder / "model"),
        "data.prompt_dataset": str(folder / "prompts.jsonl"),
        "data.max_len": 160,
        "data.dataloader_num_workers": 0,
        "reward.remote_url": str(folder / "reward.py"),
        "algo.advantage.estimator": "group_norm",
        "algo.kl.init_coef": 0,
        # What vLLM says of its tokens comes along where the loss is weighed by it; each weight is clipped to one.
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_mode": "clip",
        "algo.advantage.is_correction_threshold": (1.0, 1.0),
        "train.colocate_all": True,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "vllm.gpu_memory_utilization": 0.2,
        "vllm.enforce_eager": True,
        "rollout.n_samples_per_prompt": rollouts.GROUP,
        "rollout.batch_size": rollouts.PROMPTS,
        "rollout.micro_batch_size": rollouts.GROUP,
        "rollout.max_new_tokens": rollouts.LENGTH,
        "train.micro_batch_size": rollouts.GROUP,
        "train.batch_size": rollouts.GROUP * rollouts.PROMPTS,
        "train.num_episodes": steps * rollouts.PROMPTS // ROWS,
        "ds.attn_implementation": SETTINGS[check["setting"]].implementation,
        **({"ds.packing_samples": True} if check["setting"] == "fa2" else {}),
        "actor.adam.lr": 2e-3,
        "actor.lr_scheduler": "constant",
        "actor.max_norm": 0.0,
        "ckpt.path": str(folder / "checkpoints"),
        "ckpt.output_dir": str(folder / "out"),
    }


def _samples_of(update: dict[str, Any]) -> list[Sample]:
    """The samples of an update: a token counts where the mask, which begins with the second, says so."""
    made = []
    for tokens, mask, _ in update["samples"]:
        trained = mask.bool()
        made.append((tokens[: int(trained.nonzero()[0]) + 1].tolist(), tokens[1:][trained].tolist()))
    return made


def _said_of(update: dict[str, Any]) -> list[torch.Tensor]:
    return [said[mask.bool()] for _, mask, said in update["samples"]]
