"""Faults that are put into OpenRLHF's path on purpose. The record of a step is made after them, and sees through them.

A model is an Actor, whose ``model`` is DeepSpeed's engine once its optimizer was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import tiny

if TYPE_CHECKING:
    from collections.abc import Callable


def put_into_model(fault: str, built: Any) -> None:
    """Put a fault into a model of transformers' before its optimizer is made."""
    if fault in MODEL_FAULTS:
        MODEL_FAULTS[fault](built)


def put_into_actor(fault: str, actor: Any) -> None:
    """Put a fault into an Actor that has its optimizer."""
    if fault in ACTOR_FAULTS:
        ACTOR_FAULTS[fault](actor)


def put_into_sft(fault: str, trainer: Any) -> None:
    """Put a fault into an SFTTrainer that has not trained."""
    put_into_actor(fault, trainer.model)
    if fault in SFT_FAULTS:
        SFT_FAULTS[fault](trainer)


def put_into_ppo(fault: str, trainer: Any) -> None:
    """Put a fault into an ActorPPOTrainer that has not trained."""
    put_into_actor(fault, trainer.actor)
    if fault in PPO_FAULTS:
        PPO_FAULTS[fault](trainer)


def put_into_resumed(fault: str, trainer: Any) -> None:
    """Put a fault into an SFTTrainer that has loaded a checkpoint."""
    if fault in RESUMED_FAULTS:
        RESUMED_FAULTS[fault](trainer)


def _freeze_adapter(built: Any) -> None:
    frozen = next(item for name, item in built.named_parameters() if "layers.1" in name and "lora_B" in name)
    frozen.requires_grad_(False)


def _train_base(built: Any) -> None:
    dict(built.named_parameters())["base_model.model.lm_head.weight"].requires_grad_(True)


def _in_forward(change: Callable[[dict[str, Any]], None]) -> Callable[[Any], None]:
    """A fault that changes what the model is given."""

    def put(actor: Any) -> None:
        plain = actor.model.forward

        def forward(*words: Any, **options: Any) -> Any:
            if actor.training:
                change(options)
            return plain(*words, **options)

        actor.model.forward = forward

    return put


def _ignore_seams(options: dict[str, Any]) -> None:
    places = options["position_ids"]
    options["position_ids"] = torch.arange(places.shape[-1], device=places.device)[None]


def _ignore_padding(options: dict[str, Any]) -> None:
    options["attention_mask"] = options["position_ids"] = None


def _shift_labels(actor: Any) -> None:
    plain = actor.model.forward

    def forward(*words: Any, **options: Any) -> Any:
        output = plain(*words, **options)
        if actor.training:
            output["logits"] = output["logits"].roll(1, dims=1)
        return output

    actor.model.forward = forward


def _lose_first_batch(actor: Any) -> None:
    plain, calls = actor.model.backward, []

    def backward(loss: Any, *words: Any, **options: Any) -> Any:
        calls.append(loss)
        return plain(loss * 0.0 if len(calls) == 1 else loss, *words, **options)

    actor.model.backward = backward


def _in_batches(change: Callable[[Any, Any, Any], Any]) -> Callable[[Any], None]:
    """A fault that gives every batch of an SFTTrainer another mask of what is trained."""

    def put(trainer: Any) -> None:
        plain = trainer.train_dataloader.collate_fn

        def collate(items: list[Any]) -> Any:
            tokens, mask, trained = plain(items)
            return tokens, mask, change(tokens, mask, trained.clone())

        trainer.train_dataloader.collate_fn = collate

    return put


def _train_prompts(_tokens: Any, mask: Any, trained: Any) -> Any:
    return torch.where(mask.roll(-1, dims=-1).bool(), torch.ones_like(trained), trained)


def _train_padding(_tokens: Any, mask: Any, trained: Any) -> Any:
    return torch.where(mask.bool(), trained, torch.ones_like(trained))


def _drop_row(_tokens: Any, _mask: Any, trained: Any) -> Any:
    trained[0] = 0.0
    return trained


def _in_loss(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Any], None]:
    """A fault that changes by what the loss of an SFTTrainer is divided."""

    def put(trainer: Any) -> None:
        plain = trainer.loss_fn.forward
        trainer.loss_fn.forward = lambda *words, **counts: plain(*words, **change(counts))

    return put


def _forget_steps(trainer: Any) -> None:
    plain = trainer.train_dataloader.sampler.set_epoch
    trainer.train_dataloader.sampler.set_epoch = lambda epoch, **_consumed: plain(epoch, consumed_samples=0)


def _forget_moments(trainer: Any) -> None:
    for state in trainer.optimizer.optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name].zero_()


def _in_ppo_loss(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Any], None]:
    """A fault that changes what the loss of a policy is computed of."""

    def put(trainer: Any) -> None:
        plain = trainer.actor_loss_fn.forward

        def forward(own: Any, old: Any, advantages: Any, **known: Any) -> Any:
            known = change({**known, "advantages": advantages})
            return plain(own, old, known.pop("advantages"), **known)

        trainer.actor_loss_fn.forward = forward

    return put


def _without_counts(known: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if name not in ("batch_num_tokens", "global_batch_size")}


def _in_experience(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """A fault that changes the experience that is put into the buffer."""

    def put(trainer: Any) -> None:
        plain = trainer.replay_buffer.append

        def append(experience: Any) -> None:
            change(experience)
            plain(experience)

        trainer.replay_buffer.append = append

    return put


def _train_whole_samples(experience: Any) -> None:
    experience.action_mask = experience.attention_mask[:, 1:]


def _ignore_ends(experience: Any) -> None:
    experience.action_mask = experience.action_mask * (experience.sequences[:, 1:] != tiny.END)


def _forget_reference(experience: Any) -> None:
    experience.base_action_log_probs = experience.action_log_probs


MODEL_FAULTS = {"adapter-frozen": _freeze_adapter, "base-trained": _train_base}
ACTOR_FAULTS = {
    "labels-shifted": _shift_labels,
    "first-batch-lost": _lose_first_batch,
    "seams-ignored": _in_forward(_ignore_seams),
    "padding-ignored": _in_forward(_ignore_padding),
}
SFT_FAULTS = {
    "prompt-trained": _in_batches(_train_prompts),
    "padding-trained": _in_batches(_train_padding),
    "row-dropped": _in_batches(_drop_row),
    "counted-twice": _in_loss(lambda counts: {**counts, "batch_num_tokens": 2 * counts["batch_num_tokens"]}),
    "mean-of-means": _in_loss(lambda _counts: {}),
}
PPO_FAULTS = {
    "advantages-shuffled": _in_ppo_loss(lambda known: {**known, "advantages": known["advantages"].roll(1, dims=0)}),
    "counted-twice": _in_ppo_loss(lambda known: {**known, "batch_num_tokens": 2 * known["batch_num_tokens"]}),
    "mean-of-means": _in_ppo_loss(_without_counts),
    "prompt-trained": _in_experience(_train_whole_samples),
    "end-ignored": _in_experience(_ignore_ends),
    "reference-forgotten": _in_experience(_forget_reference),
}
RESUMED_FAULTS = {"steps-skipped": _forget_steps, "moments-lost": _forget_moments}
