"""What the checks of TRL's trainers share: options, adapters, and what is asked of a training."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from smoke_tests.trainers import fp64, tiny, trl_faults
from smoke_tests.trainers.step_record import StepRecord

from smoke_tests import model, profiling, training
from smoke_tests.outcomes import Failed
from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import SETTINGS, kernel_fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS, SAVED = 8, 3  # in the midst of an epoch: a trainer that begins it again has other rows
BATCH, ACCUMULATED = 2, 2
RESUMED = 1e-5  # how far a loss after a checkpoint may be from the one without it; kernels of a GPU add in any order

CAST = 5e-3  # bitsandbytes turns the biases of its layers to bf16, which is no training
Check = dict[str, Any]


def judge(check: Check, report: dict[str, Any], faults: set[str], train: Callable[[str, str], None]) -> None:
    """Train a family with ``train(family, fault)``; with a fault on purpose, pass if the comparison notices it."""
    subject = check["detail"].rpartition("/")[2]
    if subject not in faults:
        train(subject, "")
        return
    try:
        train("qwen2", subject)
    except Failed as noticed:
        report["figures"] = {"noticed": str(noticed)}
        return
    raise Failed(f"unnoticed: {subject} is in the trainer's path, and the comparison saw nothing")


def is_adapted(check: Check) -> bool:
    """Whether only adapters are trained."""
    return check["mode"].endswith("lora")


def options(check: Check, folder: Path) -> dict[str, Any]:
    """The options of every trainer. What is not stated is TRL's own default, gradient checkpointing among it."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()  # another check's trainer had another precision
    os.environ["HF_DATASETS_CACHE"] = str(folder / "datasets")
    return {
        "output_dir": str(folder / "out"),
        "model_init_kwargs": {
            "attn_implementation": SETTINGS[check["setting"]].implementation,
            "dtype": "float32",
        },
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATED,
        "learning_rate": 1e-2 if is_adapted(check) else 4e-3,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "max_steps": STEPS,
        "use_cpu": training.device_here().type == "cpu",
        "bf16": PRECISIONS[check["dtype"]].autocast == "bfloat16",
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": SAVED,
        "report_to": "none",
        "disable_tqdm": True,
    }


def adapters() -> Any:
    """LoRA on every projection, with adapters that are not zero: a zero one has no gradient to compare."""
    import peft

    targets = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
    return peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM")


def train(trainer: Any, fault: str) -> StepRecord:
    """Train to the end; with a fault put in first, if one is named. Returns the record of the first step."""
    record = StepRecord(trainer, training.device_here())
    trl_faults.put(fault, trainer)
    trainer.train()
    return record


def losses(trainer: Any) -> list[float]:
    """The losses that a trainer has logged."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def demand_setting(check: Check, trainer: Any, record: StepRecord, report: dict[str, Any]) -> None:
    """The attention that was asked for arrived, and its own kernels ran."""
    setting, device = SETTINGS[check["setting"]], training.device_here()
    resolved = trainer.accelerator.unwrap_model(trainer.model).config._attn_implementation
    report["resolved"] = {"implementation": resolved, "trainer": type(trainer).__name__}
    report["kernels"] = profiling.attention_names(record.kernels)
    if resolved != setting.implementation:
        raise Failed(f"setting-lost: {setting.implementation} was asked for, {resolved} resolved")
    if swapped := kernel_fault(setting, record.kernels, on_gpu=device.type == "cuda"):
        raise Failed(f"kernel-swapped: {swapped}")


def demand_first_step(
    check: Check,
    record: StepRecord,
    report: dict[str, Any],
    reference: Callable[[set[str]], tuple[float, fp64.Weights]],
    *,
    least: float = 0.0,
) -> None:
    """Loss and gradients are those of ``reference(trained)``, and the step moved the trained weights and no other.

    A loss that is nearer to zero than ``least`` is compared as if it were that large.
    """
    trained = {name for name in record.weights if (".lora_" in name) == is_adapted(check)}
    if strange := sorted((set(record.gradients) | record.moved(by=CAST)) - trained):
        raise Failed(f"{strange[0]} was trained, and only adapters should be ({len(strange)} such weights)")
    if still := sorted(trained - record.moved()):
        raise Failed(f"{still[0]} stayed as it was in the optimizer's step ({len(still)} such weights)")
    loss, expected = reference(trained)
    worst, worst_name = 0.0, ""
    for name, gradient in expected.items():
        error = ((record.gradients[name] - gradient).norm() / gradient.norm()).item()
        if not error <= worst:  # so that NaN is the worst
            worst, worst_name = error, name
    errors = {
        "loss": abs(record.loss - loss) / max(abs(loss), least),
        "gradient": worst,
        "gradient_of": worst_name,
        "reference_loss": loss,
    }
    report["errors"] = errors
    precision = PRECISIONS[check["dtype"]]
    if not training.within(precision, errors):
        raise Failed(
            f"the first step's loss is off by {errors['loss']:.1e} ({precision.loss:.0e} is allowed), the gradient of"
            f" {worst_name} by {worst:.1e} ({precision.gradient:.0e})"
        )


def demand_logged(logged: list[float], record: StepRecord) -> None:
    """The first loss that the trainer logs is the one of its first step."""
    if abs(logged[0] - record.loss) > 1e-3 * abs(record.loss):
        raise Failed(f"the trainer's log says {logged[0]} of a first step whose loss is {record.loss}")


def demand_resumption(again: Any, folder: Path, logged: list[float], fault: str) -> None:
    """A second trainer goes on from the checkpoint, with the losses that the first one had."""
    trl_faults.put_after_resumption(fault, again)
    again.train(resume_from_checkpoint=str(folder / "out" / f"checkpoint-{SAVED}"))
    demand_same_losses(losses(again)[SAVED:], logged[SAVED:], "after the checkpoint")


def demand_same_losses(seen: list[float], wanted: list[float], when: str) -> None:
    """Two trainings had the same losses; raises ``Failed`` with both."""
    if len(seen) != len(wanted):
        raise Failed(f"{when} {len(seen)} steps were taken, {len(wanted)} are wanted")
    worst = max(abs(one - other) / abs(other) for one, other in zip(seen, wanted))
    if not worst <= RESUMED:
        raise Failed(f"resumed-elsewhere: {when} the losses are {seen}, without it {wanted}")


def rows_in(batches: list[dict[str, Any]], rows: list[list[int]]) -> list[int]:
    """The numbers of the rows in batches, found by their tokens; every token must be a row's or filling."""
    numbers: list[int] = []
    for batch in batches:
        for line in batch["input_ids"].tolist():
            rest = line
            while any(token != tiny.PAD for token in rest):
                number = next((n for n, row in enumerate(rows) if rest[: len(row)] == row), None)
                if number is None:
                    raise Failed(f"a batch has tokens that are no whole row: {rest[:8]} ... of {len(rest)}")
                numbers.append(number)
                rest = rest[len(rows[number]) :]
    return numbers


SHAPE = model.TINY
