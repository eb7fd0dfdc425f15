"""Trainers that are ``transformers.Trainer`` underneath: their options, and how one is watched.

Most of them are started by a function or command that makes the trainer itself. It is caught when it begins to train.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import transformers
from smoke_tests.trainers import demands, saved_model, whole_training
from smoke_tests.trainers.step_record import TrainingRecord

from smoke_tests import model, optimizer_reference, training
from smoke_tests.outcomes import Failed
from smoke_tests.precision import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from smoke_tests.trainers import fp64
    from smoke_tests.trainers.step_record import StepRecord

STEPS, SAVED = 8, 3  # in the midst of an epoch: a trainer that begins it again has other rows
BATCH, ACCUMULATED = 2, 2
SHORT = 2  # steps with a fault on purpose: some begin with the second one
SCHEDULED = {
    "per_device_train_batch_size": 3,  # of eight rows: an epoch's last batch has two, and its last step one batch
    "num_train_epochs": 3,
    "max_steps": -1,
    "lr_scheduler_type": "linear",
    "warmup_steps": 2,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
}
"""What the mode ``scheduled`` asks for in the place of the plain options: everything that has a formula of its own."""
SCHEDULED_STEPS = 6
Caught = tuple[Any, TrainingRecord]
"""A trainer that has trained, and the record of its steps."""
TARGETS = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
RANK, ALPHA = 8, 16


def options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The options of every such trainer, by transformers' names. What is not stated is the trainer's own default."""
    _forget_precision()
    os.environ["HF_DATASETS_CACHE"] = str(folder / "datasets")
    made = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATED,
        "learning_rate": rate(check),
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "max_steps": steps(check),
        "use_cpu": training.device_here().type == "cpu",
        "bf16": PRECISIONS[check["dtype"]].autocast == "bfloat16",
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": SAVED,
        "report_to": "none",
        "disable_tqdm": True,
    }
    return made | SCHEDULED if is_scheduled(check) else made


def rate(check: dict[str, Any]) -> float:
    """The learning rate of a supervised training."""
    return 1e-2 if demands.is_adapted(check) else 4e-3


def steps(check: dict[str, Any]) -> int:
    """How many optimizer steps a training has."""
    if is_scheduled(check):
        return SCHEDULED_STEPS
    return SHORT if demands.is_short(check) else STEPS


def is_scheduled(check: dict[str, Any]) -> bool:
    """Whether a training has warm-up and decay, clipping, weight decay and batches that its rows do not fill."""
    return str(check["mode"]).startswith("scheduled")


def recipe(check: dict[str, Any], largest_rate: float) -> optimizer_reference.Recipe:
    """How the optimizer of a training must take its steps, as its options ask."""
    if not is_scheduled(check):
        return optimizer_reference.Recipe(lambda _name: optimizer_reference.Group(largest_rate))
    return optimizer_reference.Recipe(
        optimizer_reference.decay_all_but(largest_rate, SCHEDULED["weight_decay"]),
        schedule=optimizer_reference.linear_schedule(SCHEDULED["warmup_steps"], SCHEDULED_STEPS),
        clip=SCHEDULED["max_grad_norm"],
    )


def keep_options(report: dict[str, Any], folder: Path, parts: dict[str, Any], *, command: str = "") -> None:
    """Keep in a check's report what it trained with, for the trainer's page: its options, and how it was started.

    ``parts`` has the options by the file or class that takes them. The check's ``folder`` is left out of paths.
    ``command`` is what starts the trainer in that folder; empty where it is made in Python.
    """
    report["options"] = {"command": command, "parts": _without_folder(parts, str(folder))}


def _without_folder(value: Any, folder: str) -> Any:
    if isinstance(value, dict):
        return {name: _without_folder(item, folder) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folder(item, folder) for item in value]
    if isinstance(value, str):
        return "." if value == folder else value.removeprefix(f"{folder}/")
    return value


def _forget_precision() -> None:
    """Another check's trainer had another precision, and accelerate keeps it."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def train(start: Callable[[], Any], put: Callable[[Any], None] | None = None) -> Caught:
    """Call ``start``, which trains somewhere inside; returns the trainer, and the record of its steps.

    ``put`` is given the trainer before it begins. Adapters get values first: where half of them are zero, as peft makes
    them, the other half has no gradient to compare.
    """
    caught: list[Caught] = []
    plain = transformers.Trainer.train

    def begin(trainer: Any, *words: Any, **known: Any) -> Any:
        fill_adapters(trainer.model)
        caught.append((trainer, TrainingRecord(trainer, training.device_here())))
        if put is not None:
            put(trainer)
        return plain(trainer, *words, **known)

    with mock.patch.object(transformers.Trainer, "train", begin):
        start()
    if len(caught) != 1:
        raise RuntimeError(f"{len(caught)} trainers have trained, and not one")  # no fault of theirs that was noticed
    return caught[0]


def fill_adapters(built: Any) -> None:
    """Give every low-rank adapter of a model its own values, from a seed and its name."""
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if ".lora_" in name:
                generator = torch.Generator().manual_seed(model.SEED + sum(map(ord, model.plain_name(name))))
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.copy_(0.5 * noise / parameter.shape[-1] ** 0.5)


def losses(trainer: Any) -> list[float]:
    """The losses that a trainer has logged."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def implementation(trainer: Any) -> str:
    """The attention that the trainer's model has."""
    return str(trainer.accelerator.unwrap_model(trainer.model).config._attn_implementation)


def demand_training(
    check: dict[str, Any], caught: Caught, report: dict[str, Any], rows: list[fp64.Row], folder: Path
) -> list[float]:
    """Everything that is asked of a supervised training on ``rows`` in ``folder``; returns its losses.

    Where rows are packed, a step has as many as there is room for; else as many as were asked for.
    """
    trainer, record = caught
    tokens = [row for row, _ in rows]
    count = None if "packed" in check["layout"] or is_scheduled(check) else BATCH * ACCUMULATED

    def reference(step: StepRecord, trained: set[str]) -> tuple[float, fp64.Weights]:
        return demands.step_reference(step, trained, rows, count)

    demand_steps(check, caught, report, asked(check, rate(check), reference))
    logged = demand_losses(check, caught)
    whole_training.demand_epochs(
        [number for step in record.steps for number in demands.rows_in(step.batches, tokens)], len(rows)
    )
    saved_model.demand_saved(check, trainer, record, folder, report)
    return logged


def asked(check: dict[str, Any], largest_rate: float, reference: Any, *, least: float = 0.0) -> whole_training.Asked:
    """What the options of a training ask of its steps."""
    return whole_training.Asked(recipe(check, largest_rate), steps(check), reference, least)


def demand_steps(check: dict[str, Any], caught: Caught, report: dict[str, Any], wanted: whole_training.Asked) -> None:
    """The attention that was asked for ran, and every step is the reference's."""
    trainer, record = caught
    report["losses"] = losses(trainer)
    demands.demand_setting(check, implementation(trainer), record.steps[0], report)
    whole_training.demand_steps(check, record, report, wanted)


def demand_losses(check: dict[str, Any], caught: Caught) -> list[float]:
    """The losses that were logged are those of the steps, and they fall; returns them."""
    trainer, record = caught
    logged = losses(trainer)
    demands.demand_logged(logged, *record.steps)
    demands.demand_learning(check, logged)
    return logged


def checkpoint(folder: Path) -> str:
    """The checkpoint in the midst of a training."""
    return str(folder / "out" / f"checkpoint-{SAVED}")


def demand_resumption(start: Callable[[], Any], caught: Caught, put: Callable[[Any], None] | None) -> None:
    """A second trainer, which ``start`` makes go on from the checkpoint, comes to the first's losses and weights."""
    again, record = train(start, put)
    trainer, wanted = caught
    demands.demand_same_losses(losses(again)[SAVED:], losses(trainer)[SAVED:], "after the checkpoint")
    begun, left = wanted.steps[SAVED].weights, wanted.steps[-1].after
    demands.demand_same_weights(record.steps[-1].after, left, begun, "after the checkpoint")


def losses_of_command(argv: list[str], out: Path) -> list[float]:
    """The losses of a trainer's command, run beside this interpreter, from the state that it saves below ``out``."""
    executable = str(Path(sys.executable).with_name(argv[0]))
    home = {"HOME": str(out.parent), "PYTHONPATH": ""}
    done = subprocess.run([executable, *argv[1:]], capture_output=True, text=True, check=False, env=os.environ | home)
    state = next(out.rglob(f"checkpoint-{STEPS}/trainer_state.json"), None)
    if done.returncode or state is None:
        raise Failed(f"`{' '.join(argv[:2])}` ended with status {done.returncode}: {done.stderr[-600:]}")
    history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]
