"""verl's GRPO, as ``python -m verl.trainer.main_ppo`` starts it: Ray's processes, vLLM's generation, FSDP's update.

The command is a process with children of its own. What they keep for the checks is ``verl_watch``'s, what is asked of
it ``rollouts``'.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import demands, hugging_face, rollouts, tiny, verl_place, verl_sft
from smoke_tests.trainers.verl_checks import GRPO_FAULTS

import smoke_tests
from smoke_tests import training
from smoke_tests.outcomes import NotRun
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from smoke_tests.trainers.rollouts import Sample

MODULE = "verl.trainer.main_ppo"
REWARD = f"""\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **known):
    text = solution_str
    return {rollouts.REWARD_OF_TEXT}
"""
END = "<|im_end|>"


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the command, and ask of it what README.md says."""
    if training.device_here().type == "cpu":
        raise NotRun("verl's GRPO generates with vLLM, whose wheel has kernels for GPUs only")

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, GRPO_FAULTS, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    _write_files(folder, family)
    options = _options(check, folder, steps=2 if demands.is_short(check) else rollouts.STEPS)
    hugging_face.keep_options(report, folder, {"options": options}, command=f"python -m {MODULE}")
    own = {
        "PYTHONPATH": str(Path(smoke_tests.__file__).parents[1]),
        "HYDRA_FULL_ERROR": "1",
        verl_place.FOLDER: str(folder),
        verl_place.FAULT: fault,
    }
    taken = rollouts.run_command(MODULE, verl_place.words_of(options), folder, own)
    rewards = verl_place.numbers_in((folder / "printed.txt").read_text(), "critic/rewards/mean")
    report["figures"] = {"rewards": rewards, **taken}
    kept, later = (torch.load(folder / f"update-{number}.pt", weights_only=False) for number in (0, 1))
    record = rollouts.KeptRecord(kept)
    demands.demand_setting(check, kept["implementation"], record, report)
    samples = samples_of(kept["samples"])
    rollouts.count_samples(samples)
    demands.demand_first_step(
        check, record, report, lambda trained: rollouts.grpo_reference(record, samples, trained), least=1.0
    )
    said = later["samples"]["rollout_log_probs"]
    report["figures"]["generated"] = rollouts.demand_sent(record, samples_of(later["samples"]), said)
    rollouts.demand_reward(check, rewards)


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
        "data.train_batch_size": rollouts.PROMPTS,
        "data.max_prompt_length": 96,
        "data.max_response_length": rollouts.LENGTH,
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": str(folder / "model"),
        "actor_rollout_ref.model.external_lib": "smoke_tests.trainers.verl_watch",
        "+actor_rollout_ref.model.override_config.attn_implementation": attention,
        f"{actor}.ppo_mini_batch_size": rollouts.PROMPTS,
        f"{actor}.ppo_micro_batch_size_per_gpu": rollouts.GROUP,
        f"{actor}.optim.lr": 2e-3,
        f"{actor}.optim.clip_grad": 1e9,
        f"{actor}.grad_clip": 1e9,
        f"+{actor}.fsdp_config.mixed_precision": {f"{name}_dtype": "fp32" for name in ("param", "reduce", "buffer")},
        f"{rollout}.name": "vllm",
        f"{rollout}.n": rollouts.GROUP,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.gpu_memory_utilization": 0.2,
        f"{rollout}.enforce_eager": True,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": rollouts.GROUP,
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes": 64,
        f"{rollout}.agent.num_workers": 1,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": str(folder / "reward.py"),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.total_epochs": rollouts.STEPS,
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


def samples_of(rows: dict[str, list[torch.Tensor]]) -> list[Sample]:
    """The samples of an update: prompts, and completions as far as they count."""
    return [
        (prompt.tolist(), answer[mask.bool()].tolist())
        for prompt, answer, mask in zip(rows["prompts"], rows["responses"], rows["response_mask"])
    ]
