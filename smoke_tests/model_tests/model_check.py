"""One check: a step of the miniature under a setting, in a precision and a layout, against the reference."""

from __future__ import annotations

import json
from typing import Any

import torch

from model_tests import attention_formulas as formulas
from model_tests import explaining, fault_kinds, model_refusals, short_training
from model_tests.batches import POSITIONED, lengths_of
from model_tests.element_types import element_type, swapped_types
from model_tests.limits import LIMITS, OVER_RIGHT
from model_tests.paired import PairedMeasure
from model_tests.reference import Reference, compute_reference
from model_tests.subject import Subject
from model_tests.trial import Trial, gradient_errors
from smoke_tests import profiling
from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import SETTINGS, families_in, kernel_fault
from smoke_tests.training import backend, device_here

UNASKED = "no layer of this model asks transformers for attention"
CLEARLY = 1.5  # times what is allowed: less may be rounding, which another layout changes too
PAIRED_BATCHES = 3  # in half precision; of fp32 one batch says enough
_subjects: dict[str, Subject] = {}
_references: dict[tuple[Any, ...], Reference] = {}
_floors: dict[tuple[Any, ...], tuple[float, dict[str, float]]] = {}


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Run the check; ``report`` is filled on the way, so that what was seen before a failure is kept."""
    with model_refusals.recognised(), backend(SETTINGS[check["setting"]]):
        if check["setting"] == "flex" and device_here().type == "cpu":
            model_refusals.ask_flex(device_here())
        if check["detail"]:
            fault_kinds.try_fault(check, report, judge)
        else:
            judge(check, report)


def judge(check: dict[str, Any], report: dict[str, Any], fault: Any = None) -> None:
    """Take the step; raises ``Failed`` for another kernel or a wrong number. ``fault`` wraps the attention function."""
    setting, layout = SETTINGS[check["setting"]], check["layout"]
    trial = Trial(subject_of(check), setting, PRECISIONS[check["dtype"]], device_here())
    report["resolved"] = {"implementation": trial.resolved()}
    if "/" in trial.resolved() and trial.resolved() != setting.implementation:
        raise NotRun(f"transformers says that it takes {trial.resolved()} instead, kernels of the hub")
    if trial.resolved() != setting.implementation:
        raise Failed(f"kernel-swapped: {setting.implementation} was asked for, {trial.resolved()} resolved")
    reference = reference_of(check, 0)
    loss = trial.step(layout, 0, reference, fault=fault, watch=True)
    report["kernels"] = profiling.attention_names(trial.kernels)
    _demand_kernels(check, trial, reference)
    errors = report["errors"] = _errors(check, trial, reference, loss)
    report["routing"] = {"different": trial.flips[0], "of": trial.flips[1]}
    owners = trial.owners
    known = reference.fits_formulas or trial.text_config.model_type in formulas.KNOWN_TYPES
    first_calls = trial.calls if known else []
    measure = PairedMeasure(trial.text_config)
    measure.add(first_calls, owners)
    if first_calls and check["dtype"] != "fp32":
        for number in range(1, 1 if check["quick_run"] else PAIRED_BATCHES):
            trial.step(layout, number, reference_of(check, number), fault=fault)
            measure.add(trial.calls, owners)
    report["paired"] = measure.figures()
    model_faults, attention_faults = _model_faults(check, errors), _attention_faults(check, report["paired"])
    if not model_faults and not attention_faults:
        if fault is None:
            _demand_training(check, trial, reference, report)
        return
    broken = explaining.explain_calls(first_calls, owners, trial.text_config)
    if not broken and not attention_faults:
        broken = _explain_beyond_attention(check, trial, reference, errors, seen=bool(first_calls))
    report["explanation"] = broken
    raise Failed("silently-wrong: " + "; ".join([*(broken or attention_faults), *model_faults]))


def _demand_training(check: dict[str, Any], trial: Trial, reference: Reference, report: dict[str, Any]) -> None:
    """Train on, and see that the steps are AdamW's and that the model is right where they lead."""
    ended = short_training.train_on(trial, check["layout"], subject_of(check), reference, report)
    if ended is not None:
        last, loss = ended
        errors = report["training"]["errors"] = _errors(check, trial, last, loss)
        if faults := _model_faults(check, errors):
            raise Failed(f"silently-wrong: after {short_training.STEPS} steps that are right themselves, {faults[0]}")


def _demand_kernels(check: dict[str, Any], trial: Trial, reference: Reference) -> None:
    """See that the setting's own kernels ran, in the precision that was asked for."""
    swapped = kernel_fault(trial.setting, trial.kernels, on_gpu=trial.device.type == "cuda")
    if swapped is not None and not reference.formulas:
        raise NotRun(f"{UNASKED}, so this setting changes nothing")
    if swapped is not None:
        raise Failed(f"kernel-swapped: {swapped}")
    attention_kernels = [name for own in families_in(trial.kernels).values() for name in own]
    for name in swapped_types(attention_kernels, check["dtype"]):
        raise Failed(f"kernel-swapped: a run in {check['dtype']} computed in {element_type(name)}: {name[:160]}")


def _explain_beyond_attention(
    check: dict[str, Any], trial: Trial, reference: Reference, errors: dict[str, Any], *, seen: bool
) -> list[str]:
    """Say what is broken where no call of attention is; ``seen`` says whether there were calls to hold to a rule."""
    layout = check["layout"]
    clear = max(errors[part] / errors[f"{part}_allowed"] for part in ("loss", "gradient")) > CLEARLY
    if clear and layout == "left-padded" and _is_right_with_positions(check, trial, reference):
        return [explaining.POSITIONS]
    leaks = layout.startswith("packed") and trial.leaks(layout)
    if seen:
        return [explaining.outside_attention(layout, trial.text_config, leaks=leaks)]
    return [explaining.LEAKS] if leaks else []


def _is_right_with_positions(check: dict[str, Any], trial: Trial, reference: Reference) -> bool:
    """Whether the model is right where it is told the position of each token."""
    try:
        loss = trial.step(check["layout"] + POSITIONED, 0, reference)
    except Exception:  # noqa: BLE001 - a model that takes no positions says so in any way
        return False
    return not _model_faults(check, _errors(check, trial, reference, loss))


def subject_of(check: dict[str, Any]) -> Subject:
    """The miniature of a check's configuration; built once in a process."""
    key = json.dumps([check["given"], check["remote_code"]], sort_keys=True)
    if key not in _subjects:
        _subjects.clear()  # checks come family by family
        _references.clear()
        _floors.clear()
        _subjects[key] = Subject(check["given"], remote_code=check["remote_code"])
    return _subjects[key]


def reference_of(check: dict[str, Any], number: int) -> Reference:
    """The reference of a batch; the same for all settings, and for all layouts of the same sequences."""
    weights = getattr(torch, PRECISIONS[check["dtype"]].weights)
    key = (lengths_of(check["layout"]), number, weights)
    if key not in _references:
        _references[key] = compute_reference(subject_of(check), check["layout"], number, weights)
    return _references[key]


def _floor_of(check: dict[str, Any], reference: Reference) -> tuple[float, dict[str, float]]:
    """The errors that the model has in this precision with attention that is right."""
    key = (lengths_of(check["layout"]), check["dtype"])
    if key not in _floors:
        trial = Trial(subject_of(check), SETTINGS["eager"], PRECISIONS[check["dtype"]], device_here())
        loss = trial.step_alone(check["layout"], 0, reference)
        errors = gradient_errors(dict(trial.model.named_parameters()), reference.gradients)
        _floors[key] = (abs(loss - reference.loss) / reference.loss, errors)
    return _floors[key]


def _errors(check: dict[str, Any], trial: Trial, reference: Reference, loss: float) -> dict[str, Any]:
    """The loss's error, and that of the gradient which exceeds its bound the most, each with what is allowed."""
    limit, (floor_loss, floor) = LIMITS[check["dtype"]], _floor_of(check, reference)
    own = gradient_errors(dict(trial.model.named_parameters()), reference.gradients)
    allowed = {name: max(limit.gradient, OVER_RIGHT * floor[name]) for name in own}
    worst = max(own, key=lambda name: own[name] / allowed[name])
    hopeless = max(floor, key=lambda name: floor[name])
    return {
        "loss": abs(loss - reference.loss) / reference.loss,
        "loss_allowed": max(limit.loss, OVER_RIGHT * floor_loss),
        "gradient": own[worst],
        "gradient_of": worst,
        "gradient_allowed": allowed[worst],
        "right_attention": floor[hopeless],
        "right_attention_of": hopeless,
        "reference_loss": reference.loss,
    }


def _model_faults(check: dict[str, Any], errors: dict[str, Any]) -> list[str]:
    if not errors["right_attention"] <= LIMITS[check["dtype"]].hopeless:
        where = f"in {check['dtype']}, with one sequence at a time"
        name, size = errors["right_attention_of"], errors["right_attention"]
        return [f"whatever the attention, the gradient of {name} is off by {size:.1e} {where}"]
    if errors["loss"] <= errors["loss_allowed"] and errors["gradient"] <= errors["gradient_allowed"]:
        return []
    loss = f"the loss is off by {errors['loss']:.1e} ({errors['loss_allowed']:.0e} is allowed)"
    name, size = errors["gradient_of"], errors["gradient"]
    return [f"{loss}, the gradient of {name} by {size:.1e} ({errors['gradient_allowed']:.0e})"]


def _attention_faults(check: dict[str, Any], figures: dict[str, dict[str, float]]) -> list[str]:
    limit, lines = LIMITS[check["dtype"]], []
    for part, figure in figures.items():
        words = part.replace("_", " ")
        if not abs(figure["gain"]) <= limit.gain:
            what = "the softmax scale" if part == "scale" else f"attention's {words}"
            lines.append(f"{what} is off by {figure['gain']:+.1%} ({limit.gain:.1%} is allowed)")
        elif not figure["size"] <= limit.size:
            lines.append(f"attention's {words} has an error of {figure['size']:.1e} ({limit.size:.0e} is allowed)")
    return lines
