"""What is asked of every trainer's training, whoever made the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smoke_tests.trainers import fp64, tiny
from smoke_tests.trainers.checks import FAMILIES

from smoke_tests import gradient_shares, model, profiling, training
from smoke_tests.outcomes import Failed, demand_noticed
from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import SETTINGS, kernel_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smoke_tests.trainers.checks import Fault
    from smoke_tests.trainers.step_record import StepRecord

    Reference = Callable[[set[str]], tuple[float, fp64.Weights]]
    """A step's loss and the gradients of the weights of these names."""

RESUMED = 1e-5  # how far a loss after a checkpoint may be from the one without it; kernels of a GPU add in any order
RESUMED_BF16 = 5e-3  # the same on a GPU where bf16 is trained: a bit more or less in some weights, some steps long
RESUMED_WEIGHTS = 1e-3  # how far a weight may be from the one without a stop, as a part of the way from the checkpoint
CAST = 5e-3  # bitsandbytes turns the biases of its layers to bf16, which is no training
SHAPE = model.TINY
Check = dict[str, Any]


def judge(check: Check, report: dict[str, Any], faults: Iterable[Fault], train: Callable[[str, str], None]) -> None:
    """Train a family with ``train(family, fault)``; with a fault on purpose, pass if it is noticed for its own reason.

    What any demand says begins with its reason's name, and a fault states the one that must notice it.
    """
    subject = check["detail"].rpartition("/")[2]
    fault = next((fault for fault in faults if fault.name == subject), None)
    if fault is None:
        train(subject, "")
    else:
        report["figures"] = {"noticed": demand_noticed(lambda: train("qwen2", subject), f"^{fault.reason}: ")}


def is_short(check: Check) -> bool:
    """Whether a training may end with its first step: with a fault on purpose, that the first step must show."""
    return check["detail"].rpartition("/")[2] not in FAMILIES and not check["mode"].startswith("resumed")


def demand_learning(check: Check, losses: list[float]) -> None:
    """The losses fall and stay finite, unless the training is a short one."""
    if not is_short(check):
        training.demand_learning(losses)


def is_adapted(check: Check) -> bool:
    """Whether only adapters are trained."""
    return check["mode"].endswith("lora")


def demand_setting(check: Check, resolved: str, record: StepRecord, report: dict[str, Any]) -> None:
    """The attention that was asked for arrived (the model's is ``resolved``), and its own kernels ran."""
    setting, device = SETTINGS[check["setting"]], training.device_here()
    report["resolved"] = {"implementation": resolved, "trainer": record.trainer}
    report["kernels"] = profiling.attention_names(record.kernels)
    if resolved != setting.implementation:
        raise Failed(f"setting-lost: {setting.implementation} was asked for, {resolved} resolved")
    if swapped := kernel_fault(setting, record.kernels, on_gpu=device.type == "cuda"):
        raise Failed(f"kernel-swapped: {swapped}")


def demand_first_step(  # noqa: PLR0913
    check: Check,
    record: StepRecord,
    report: dict[str, Any],
    reference: Reference,
    *,
    least: float = 0.0,
    moves: bool = True,
) -> None:
    """Loss and gradients are those of ``reference(trained)``, and the step moved the trained weights and no other.

    A loss that is nearer to zero than ``least`` is compared as if it were that large. A step whose rate is zero, as a
    warm-up's first, ``moves`` nothing.
    """
    trained = trained_names(check, record)
    if strange := sorted((set(record.gradients) | record.moved(by=CAST)) - trained):
        raise Failed(
            f"others-moved: {strange[0]} was trained, and only adapters should be ({len(strange)} such weights)"
        )
    if moves and (still := sorted(trained - record.moved())):
        raise Failed(f"weights-still: {still[0]} stayed as it was in the optimizer's step ({len(still)} such weights)")
    report["errors"] = errors = step_errors(check, record, reference, least=least)
    if fault := training.wrong(PRECISIONS[check["dtype"]], errors):
        raise Failed(f"first-step-off: {fault}")


def trained_names(check: Check, record: StepRecord) -> set[str]:
    """The names of the weights that a training moves."""
    return {name for name in record.weights if (".lora_" in name) == is_adapted(check)}


def step_errors(check: Check, record: StepRecord, reference: Reference, *, least: float = 0.0) -> dict[str, Any]:
    """How far a step's loss and gradients are from the reference's, as parts of one.

    In bf16 by the kind of weight too. Bounds by kind are measured for the suite's own model, whose rounding in bf16 is
    that of a trainer's; in fp32 what a trainer computes in another order shows in them.
    """
    loss, expected = reference(trained_names(check, record))
    found = gradient_shares.shares(record.gradients, expected)
    worst = max(found, key=lambda name: gradient_shares.magnitude(found[name][1]))
    errors = {
        "loss": abs(record.loss - loss) / max(abs(loss), least),
        "gradient": found[worst][1],
        "gradient_of": worst,
        "reference_loss": loss,
    }
    return errors | ({"shares": gradient_shares.worst_by_kind(found)} if check["dtype"] == "bf16" else {})


def demand_logged(logged: list[float], *steps: StepRecord) -> None:
    """The losses that the trainer logs are those of its steps, as far as they are given."""
    for number, (said, record) in enumerate(zip(logged, steps), 1):
        if abs(said - record.loss) > 1e-3 * abs(steps[0].loss):
            raise Failed(
                f"logged-elsewhere: the trainer's log says {said} of step {number}, whose loss is {record.loss}"
            )


def demand_same_losses(seen: list[float], wanted: list[float], when: str, *, bf16: bool = False) -> None:
    """Two trainings, of bf16 weights or not, had the same losses; raises ``Failed`` with both."""
    allowed = RESUMED_BF16 if bf16 and training.device_here().type != "cpu" else RESUMED
    if len(seen) != len(wanted):
        raise Failed(f"resumed-elsewhere: {when} {len(seen)} steps were taken, {len(wanted)} are wanted")
    worst = max(abs(one - other) / abs(other) for one, other in zip(seen, wanted))
    if not worst <= allowed:
        raise Failed(f"resumed-elsewhere: {when} the losses are {seen}, without it {wanted}")


def demand_same_weights(seen: fp64.Weights, wanted: fp64.Weights, begun: fp64.Weights, when: str) -> None:
    """Two trainings came to the same weights; how far they may be apart is a part of how far ``begun`` is."""
    for name, value in wanted.items():
        way = (value.double() - begun[name].double()).norm()
        if not (seen[name].double() - value.double()).norm() <= RESUMED_WEIGHTS * way:
            raise Failed(f"resumed-elsewhere: {when} {name} is not what it is without it")


def rows_in(batches: list[dict[str, Any]], rows: list[list[int]]) -> list[int]:
    """The numbers of the rows in batches, found by their tokens; every token must be a row's or filling."""
    numbers: list[int] = []
    for batch in batches:
        for line in batch["input_ids"].tolist():
            rest = line
            while any(token != tiny.PAD for token in rest):
                number = next((n for n, row in enumerate(rows) if rest[: len(row)] == row), None)
                if number is None:
                    raise Failed(f"rows-wrong: a batch has tokens that are no whole row: {rest[:8]} ... of {len(rest)}")
                numbers.append(number)
                rest = rest[len(rows[number]) :]
    return numbers


def step_reference(
    record: StepRecord, trained: set[str], rows: list[fp64.Row], count: int | None
) -> tuple[float, fp64.Weights]:
    """The reference's loss and gradients for those of the ``rows`` that the first step was given.

    ``count`` is how many there must be; None where rows are packed, and as many are in a step as there is room for.
    """
    numbers = rows_in(record.batches, [tokens for tokens, _ in rows])
    if count is not None and len(numbers) != count:
        raise Failed(f"rows-wrong: a step had {len(numbers)} rows, {count} were asked for")
    return fp64.mean_loss_and_gradients(record.weights, trained, [rows[number] for number in numbers], SHAPE)
