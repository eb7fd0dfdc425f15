"""OpenRLHF's PPO on a fixed rollout: its experience maker, its actors of policy and reference, its trainer's step.

``openrlhf-grpo`` has advantages of group_norm and the divergence from the reference (k3) as a loss,
``openrlhf-reinforce`` those of reinforce_baseline and the divergence (k1) in the reward. Rewards come with the rollout,
as an agent gives them. The reference policy is another model than the one that is trained. ``right-padded`` is how it
lays out a rollout, ``left-padded`` how a tokenizer lays out prompts for generation, ``packed`` its ``packing_samples``.
``logged`` asks whether the loss that it logs is the one that it has trained with.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from smoke_tests.trainers import (
    demands,
    fp64,
    hugging_face,
    openrlhf_faults,
    openrlhf_place,
    openrlhf_ray,
    openrlhf_rollout,
    tiny,
)
from smoke_tests.trainers.openrlhf_checks import PACKED_PPO_FAULTS, PPO_FAULTS
from smoke_tests.trainers.openrlhf_record import ActorRecord

from smoke_tests import model, reference, training
from smoke_tests.outcomes import Failed
from smoke_tests.settings import SETTINGS

STEPS = 3
KL = 0.3  # large, so that a divergence that is lost shows in the gradients
BATCH = 2
LEARNED = 0.05  # by how much the first step must raise the preference for what is rewarded; later the divergence counts
LOGGED = 1e-2  # of losses that are near zero, as advantages are normed
ALGORITHMS = {
    "openrlhf-grpo": {
        "algo.advantage.estimator": "group_norm",
        "algo.kl.use_loss": True,
        "algo.kl.estimator": "k3",
    },
    "openrlhf-reinforce": {"algo.advantage.estimator": "reinforce_baseline", "algo.kl.estimator": "k1"},
}
SAMPLES = openrlhf_rollout.samples()


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Take a few steps with the trainer, and ask of the first what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name, openrlhf_place.alone(report), openrlhf_ray.here():
            standing = [report["stand_in"]] if "stand_in" in report else []
            report["stand_in"] = "; ".join([*standing, openrlhf_ray.RAY])
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, (*PPO_FAULTS, *PACKED_PPO_FAULTS), train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    _write_reference(folder, family)
    options = _options(check, folder)
    hugging_face.keep_options(report, folder, {"options": options}, command=f"python -m {openrlhf_ray.MODULE}")
    trained = _Training(check, options, folder, fault)
    record = trained.record
    demands.demand_setting(check, trained.implementation, record, report)
    algorithm = check["detail"].partition("/")[0]
    demands.demand_first_step(
        check, record, report, lambda names: _reference(algorithm, record, trained.base, names), least=1.0
    )
    report["figures"] = {"preference": trained.preferences}
    if check["mode"] == "logged":
        _demand_logged(record, trained.logged[0], report)
    elif not demands.is_short(check) and trained.preferences[1] < trained.preferences[0] + LEARNED:
        raise Failed(f"what is rewarded did not become likelier: {trained.preferences}")


def _demand_logged(record: ActorRecord, logged: float, report: dict[str, Any]) -> None:
    """The policy's loss that is logged is that of the step; only where the divergence is no part of it."""
    report["losses"] = [logged]
    if abs(logged - record.loss) > LOGGED:
        raise Failed(f"the trainer's log says {logged} of a first step whose loss is {record.loss}")


class _Training:
    """Some steps of its trainer on the same rollout, and the record of the first."""

    def __init__(self, check: dict[str, Any], options: dict[str, Any], folder: Path, fault: str) -> None:
        args = openrlhf_ray.read_options(options)
        from openrlhf.trainer.ppo_trainer import BasePPOTrainer
        from openrlhf.trainer.ray.launcher import ReferenceModelActor
        from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
        from openrlhf.utils import get_strategy
        from openrlhf.utils.deepspeed import DeepspeedStrategy

        strategy, prepare = get_strategy(args), DeepspeedStrategy.prepare

        def prepared(own: Any, *items: Any) -> Any:
            for item in items:
                if isinstance(item, tuple):
                    hugging_face.fill_adapters(item[0].model)
                    openrlhf_faults.put_into_model(fault, item[0].model)
            return prepare(own, *items)

        policy = openrlhf_ray.Group(PolicyModelActor)
        with mock.patch.object(DeepspeedStrategy, "prepare", prepared), openrlhf_ray.with_buffer():
            policy.actor.init_model_from_pretrained(strategy, str(folder / "model"), STEPS, None)
        base = openrlhf_ray.Group(ReferenceModelActor)
        base.actor.init_model_from_pretrained(strategy, str(folder / "reference"))
        self.base = {
            model.plain_name(name): value.detach().double().cpu()
            for name, value in base.actor.model.model.module.named_parameters()
        }
        actor = policy.actor.actor
        self.implementation = str(actor.model.module.config._attn_implementation)
        openrlhf_faults.put_into_ppo(fault, policy.actor.trainer)
        self.record = ActorRecord(actor, BasePPOTrainer.__name__, training.device_here())
        trainer = BasePPOTrainer(strategy, policy, None, None, base, None, policy.actor.tokenizer)
        self.preferences: list[float] = []
        self._watch_experience(trainer.experience_maker)
        self.record.begin()
        self.logged = [
            float(trainer.train_step(_rollout(check, strategy, policy.actor.tokenizer), number)[0]["policy_loss"])
            for number in range(1 if demands.is_short(check) else STEPS)
        ]

    def _watch_experience(self, maker: Any) -> None:
        """Keep, of each rollout, how much likelier than others the completions with a high reward are."""
        plain = maker.make_experience_batch

        def make(samples: Any) -> Any:
            made = plain(samples)
            means = [(batch.action_log_probs.float().sum(-1) / batch.action_mask.sum(-1)).tolist() for batch in made]
            likely = [value for batch in means for value in batch]
            middle = [sum(sample.reward for sample in SAMPLES if sample.prompt == one.prompt) / 4 for one in SAMPLES]
            gains = [(one.reward - mean) * value for one, mean, value in zip(SAMPLES, middle, likely)]
            self.preferences.append(sum(gains) / len(gains))
            return made

        maker.make_experience_batch = make


def _write_reference(folder: Path, family: str) -> None:
    """Save a reference policy: the model with an output layer that is nearer to zero."""
    import transformers

    tiny.write_model(folder / "reference", family)
    other = transformers.AutoModelForCausalLM.from_pretrained(folder / "reference")
    with torch.no_grad():
        other.lm_head.weight *= 0.5
    other.save_pretrained(folder / "reference")


def _options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    adapted = demands.is_adapted(check)
    count = len(SAMPLES)
    return {
        "actor.model_name_or_path": str(folder / "model"),
        "reward.remote_url": "http://127.0.0.1:9",  # rewards come with the rollout, and none is asked for
        **ALGORITHMS[check["detail"].partition("/")[0]],
        "algo.kl.init_coef": KL,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "vllm.sync_backend": "gloo",
        "rollout.n_samples_per_prompt": openrlhf_rollout.GROUP,
        "rollout.batch_size": openrlhf_rollout.GROUPS,
        "rollout.micro_batch_size": BATCH,
        "train.micro_batch_size": BATCH,
        "train.batch_size": count,
        "ds.attn_implementation": SETTINGS[check["setting"]].implementation,
        **({"ds.packing_samples": True} if check["layout"] == "packed" else {}),
        **({"ds.lora.rank": hugging_face.RANK, "ds.lora.alpha": hugging_face.ALPHA} if adapted else {}),
        "actor.adam.lr": 1e-2 if adapted else 4e-3,
        "actor.lr_scheduler": "constant",
        "actor.max_norm": 0.0,
    }


def _rollout(check: dict[str, Any], strategy: Any, tokenizer: Any) -> list[Any]:
    """The samples as its SamplesGenerator makes them of what an engine answers."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    generator = SamplesGenerator(strategy, None, None, tokenizer, None)
    made = [generator._process_response_into_experience(sample.answer()) for sample in SAMPLES]
    if check["layout"] == "left-padded":
        for sample in made:
            _pad_left(sample)
    return made


def _pad_left(sample: Any) -> None:
    longest = max(len(one.tokens) for one in SAMPLES)
    missing = longest - sample.sequences.shape[-1]
    for name, filling in (("sequences", tiny.PAD), ("attention_mask", 0), ("action_mask", 0)):
        setattr(sample, name, torch.nn.functional.pad(getattr(sample, name), (missing, 0), value=filling))


def _reference(
    algorithm: str, record: ActorRecord, base: fp64.Weights, trained: set[str]
) -> tuple[float, fp64.Weights]:
    """The loss of PPO at the policy that made the rollout, a mean over all tokens of the completions."""
    rows = [sample.tokens for sample in SAMPLES]
    numbers = demands.rows_in(record.batches, rows)
    if sorted(numbers) != list(range(len(rows))):
        raise Failed(f"a step had the samples {numbers}, and not each of {len(rows)} once")
    leaves = fp64.leaves_of(record.weights, trained)
    weights = reference._with_adapters(leaves)
    chosen = [_log_probabilities(weights, sample) for sample in SAMPLES]
    with torch.no_grad():
        other = [_log_probabilities(base, sample) for sample in SAMPLES]
    advantages = ADVANTAGES[algorithm](chosen, other)
    loss, count = torch.zeros((), dtype=torch.float64), sum(map(len, chosen))
    for own, its, advantage in zip(chosen, other, advantages):
        loss = loss - (advantage * torch.exp(own - own.detach())).sum() / count
        if algorithm == "openrlhf-grpo":
            ratio = own - its
            loss = loss + KL * (torch.exp(-ratio) - 1 + ratio).clamp(-10, 10).sum() / count
    loss.backward()
    return loss.item(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def _log_probabilities(weights: fp64.Weights, sample: openrlhf_rollout.Sample) -> torch.Tensor:
    """The log probability of each token of a completion."""
    logits = fp64.logits_of(weights, sample.tokens[:-1], demands.SHAPE)[len(sample.prompt) - 1 :]
    return logits.log_softmax(-1).gather(-1, torch.tensor(sample.completion)[:, None])[:, 0]


def _rewards() -> torch.Tensor:
    return torch.tensor([sample.reward for sample in SAMPLES], dtype=torch.float64).view(-1, openrlhf_rollout.GROUP)


def _of_groups(chosen: list[torch.Tensor], _other: list[torch.Tensor]) -> list[torch.Tensor]:
    """The advantages of GRPO (https://arxiv.org/abs/2402.03300): a reward by its group's mean and deviation."""
    rewards = _rewards()
    normed = (rewards - rewards.mean(-1, keepdim=True)) / rewards.std(-1, keepdim=True)
    return [value.expand(len(own)) for value, own in zip(normed.flatten(), chosen)]


def _with_baseline(chosen: list[torch.Tensor], other: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those of REINFORCE++ with a baseline: what follows of reward and divergence, by mean and deviation of all."""
    rewards = _rewards()
    returns = []
    for reward, own, its in zip((rewards - rewards.mean(-1, keepdim=True)).flatten(), chosen, other):
        steps = -KL * (own.detach() - its).clamp(-10, 10)
        steps[-1] += reward
        returns.append(steps.flip(0).cumsum(0).flip(0))
    every = torch.cat(returns)
    return [(one - every.mean()) / every.std(correction=0) for one in returns]


ADVANTAGES = {"openrlhf-grpo": _of_groups, "openrlhf-reinforce": _with_baseline}
