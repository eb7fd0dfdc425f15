"""Faults that are put into verl's path on purpose. The record of a step is made after them, and sees through them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def put_into_model(fault: str, built: Any) -> None:
    """Put a fault into a model with adapters before FSDP wraps it."""
    if fault in MODEL_FAULTS:
        MODEL_FAULTS[fault](built)


def put_into_trainer(fault: str, trainer: Any, *, resumed: bool) -> None:
    """Put a fault into an SFTTrainer that is built and has not trained; ``resumed``: that has loaded a checkpoint."""
    known = RESUMED_FAULTS if resumed else FAULTS
    if fault in known:
        known[fault](trainer)


def put_into_engine(fault: str, engine: Any) -> None:
    """Put a fault into the engine of a policy that has not been updated."""
    if fault in ENGINE_FAULTS:
        ENGINE_FAULTS[fault](engine)


def _freeze_adapter(built: Any) -> None:
    frozen = next(item for name, item in built.named_parameters() if "layers.1" in name and "lora_B" in name)
    frozen.requires_grad_(False)


def _train_base(built: Any) -> None:
    dict(built.named_parameters())["base_model.model.lm_head.weight"].requires_grad_(True)


def _in_outputs(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Callable[[Any], None]:
    """A fault in what a micro-batch becomes: the model's inputs, and the labels that its outputs are compared with."""

    def put(trainer: Any) -> None:
        plain = trainer.engine.prepare_model_inputs

        def prepare_model_inputs(*words: Any, **known: Any) -> Any:
            inputs, outputs = plain(*words, **known)
            change(inputs, outputs)
            return inputs, outputs

        trainer.engine.prepare_model_inputs = prepare_model_inputs

    return put


def _shift_labels(_inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    outputs["input_ids_rmpad_rolled"] = outputs["input_ids_rmpad_rolled"].roll(1, dims=0)


def _ignore_seams(inputs: dict[str, Any], _outputs: dict[str, Any]) -> None:
    places = inputs["position_ids"]
    inputs["position_ids"] = torch.arange(places.shape[-1], device=places.device)[None]


def _in_batches(change: Callable[[Any, Any], None]) -> Callable[[Any], None]:
    """A fault in what is trained: it is given the tokens and the loss mask of all rows of a batch, and their ends."""

    def put(trainer: Any) -> None:
        plain = trainer.train_dataloader.collate_fn

        def collate(examples: list[dict[str, Any]]) -> Any:
            change(examples, trainer)
            return plain(examples)

        trainer.train_dataloader.collate_fn = collate

    return put


def _train_prompts(examples: list[dict[str, Any]], _trainer: Any) -> None:
    for example in examples:
        example["loss_mask"] = torch.ones_like(example["loss_mask"])
        example["loss_mask"][0] = 0


def _drop_row(examples: list[dict[str, Any]], _trainer: Any) -> None:
    examples[0]["loss_mask"] = torch.zeros_like(examples[0]["loss_mask"])


def _count(change: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    """A fault in the number of tokens by which the loss of a micro-batch is divided."""

    def put(trainer: Any) -> None:
        plain = trainer.training_client.loss_fn

        def loss_fn(*, model_output: Any, data: Any, **known: Any) -> Any:
            loss, metrics = plain(model_output=model_output, data=data, **known)
            return loss * change(data, loss), metrics

        trainer.training_client.set_loss_fn(loss_fn)

    return put


def _as_mean(data: Any, _loss: Any) -> float:
    """What turns a share of the batch's tokens into half of a micro-batch's own mean."""
    return data["batch_num_tokens"] / data["loss_mask"].values().sum().item() / 2


def _lose_first_batch(engine: Any) -> None:
    plain, calls = engine.forward_step, []

    def forward_step(*words: Any, **known: Any) -> Any:
        calls.append(words)
        if len(calls) == 2:
            engine.optimizer_zero_grad()
        return plain(*words, **known)

    engine.forward_step = forward_step


def _shuffle_advantages(samples: Any) -> None:
    """Give each sample of an update the advantage of the one before it."""
    rows = list(samples["advantages"].unbind())
    moved = [torch.full_like(row, other[0].item()) for row, other in zip(rows, rows[-1:] + rows[:-1])]
    samples["advantages"] = torch.nested.as_nested_tensor(moved, layout=torch.jagged)


def _freeze_weight(trainer: Any) -> None:
    """Leave the last of what FSDP holds out of the optimizer: a layer, or all that is in none."""
    for group in trainer.engine.optimizer.param_groups:
        group["params"] = group["params"][:-1]


def _forget_steps(trainer: Any) -> None:
    trainer.train_dataloader.next_iter_state = None


def _forget_moments(trainer: Any) -> None:
    for state in trainer.engine.optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name].zero_()


MODEL_FAULTS: dict[str, Callable[[Any], None]] = {"adapter-frozen": _freeze_adapter, "base-trained": _train_base}
FAULTS: dict[str, Callable[[Any], None]] = {
    "labels-shifted": _in_outputs(_shift_labels),
    "seams-ignored": _in_outputs(_ignore_seams),
    "prompt-trained": _in_batches(_train_prompts),
    "row-dropped": _in_batches(_drop_row),
    "counted-twice": _count(lambda _data, _loss: 0.5),
    "mean-of-means": _count(_as_mean),
    "first-batch-lost": lambda trainer: _lose_first_batch(trainer.engine),
    "weight-frozen": _freeze_weight,
}
RESUMED_FAULTS: dict[str, Callable[[Any], None]] = {"steps-skipped": _forget_steps, "moments-lost": _forget_moments}
ENGINE_FAULTS: dict[str, Callable[[Any], None]] = {"first-batch-lost": _lose_first_batch}
DATA_FAULTS: dict[str, Callable[[Any], None]] = {"advantages-shuffled": _shuffle_advantages}
"""Faults in the samples of an update of the policy."""
