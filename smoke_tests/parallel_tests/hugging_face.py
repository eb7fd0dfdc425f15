"""transformers' Trainer on several processes, as its users start it: one step of two accumulated batches on each rank.

What is checked is its own count of tokens: the loss is to be the mean over the tokens of all ranks and batches
(``average_tokens_across_devices``, whose default is taken as it is).
"""

from __future__ import annotations

import importlib.util
import tempfile
from typing import Any

import torch

from parallel_tests.expected import Expected, distances
from smoke_tests import data, model
from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.settings import SETTINGS

BATCHES = 2


def compare_trainer(world: Any, precision: Any, report: dict[str, Any], *, per_rank: bool) -> None:
    """The logged loss and every gradient of a step are those of one process.

    ``per_rank`` is the fault: ``average_tokens_across_devices=False``, so that every rank divides by its own tokens.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise NotRun("accelerate is not installed, which transformers' Trainer needs")
    import transformers

    expected = Expected(world.size, getattr(torch, precision.weights))
    rows = [data.sequence(number, 40 + 37 * number % 89) for number in range(BATCHES * world.size)]
    seen: dict[str, Any] = {}

    class Recorder(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            del args, state, control
            plain = getattr(named["model"], "module", named["model"])
            seen["gradients"] = {name: value.grad.clone().cpu() for name, value in plain.named_parameters()}

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            del args, state, control, named
            if logs and "loss" in logs:
                seen["loss"] = float(logs["loss"])

    built = model.build(SETTINGS["sdpa"], expected.shape, getattr(torch, precision.weights), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        named: dict[str, Any] = {"average_tokens_across_devices": False} if per_rank else {}
        arguments = transformers.TrainingArguments(
            folder, use_cpu=world.device.type == "cpu", per_device_train_batch_size=1, max_steps=1,
            gradient_accumulation_steps=BATCHES, max_grad_norm=0.0, learning_rate=0.05, optim="sgd", logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True, **named,
        )  # fmt: skip
        report["figures"] = {"average_tokens_across_devices": arguments.average_tokens_across_devices}
        transformers.Trainer(
            built, arguments, train_dataset=[_example(row) for row in rows], callbacks=[Recorder()]
        ).train()
    expected_loss, gradients = expected.loss_and_gradients(expected.begun, rows)
    report["errors"] = errors = distances(seen["gradients"], seen["loss"], expected_loss, gradients)
    # a logged loss is rounded to four digits in some releases
    if not (errors["gradient"] <= precision.gradient and errors["loss"] <= max(precision.loss, 1e-4)):
        raise Failed(
            f"first-step-off: the logged loss is off by {errors['loss']:.1e}, the gradient of {errors['gradient_of']}"
            f" by {errors['gradient']:.1e} ({precision.gradient:.0e} is allowed)"
        )


def _example(row: list[int]) -> dict[str, list[int]]:
    """A row whose first token, which nothing predicts, is no target, so that every count of tokens agrees."""
    return {"input_ids": row, "labels": [data.IGNORED, *row[1:]]}
