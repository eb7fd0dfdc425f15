"""One training check: build, first step against the reference, kernel proof, more steps, the same again."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch.nn import functional

from smoke_tests import data, layouts, model, profiling, reference
from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.precision import PRECISIONS, Precision
from smoke_tests.settings import SETTINGS, Setting, kernel_fault

LEARNED = 0.9  # the last loss over the first, at most


def device_here() -> torch.device:
    """The GPU if torch sees one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Run the check; ``report`` is filled on the way, so that what was seen before a failure is kept."""
    setting, precision = SETTINGS[check["setting"]], PRECISIONS[check["dtype"]]
    device = device_here()
    with backend(setting):
        trainee = Trainee(setting, precision, check["layout"], check["mode"], device)
        report["resolved"] = trainee.resolved()
        with profiling.watched(device) as names:
            first = trainee.forward_backward()
        report["kernels"] = profiling.attention_names(names)
        _demand_setting(setting, trainee, names, device)
        report["errors"] = trainee.errors(first)
        _demand_bounds(trainee, first, report["errors"])
        report["losses"] = [first, *trainee.remaining_steps(check.get("steps", 7))]
        demand_learning(report["losses"])
        again = Trainee(setting, precision, check["layout"], check["mode"], device)
        report["repeat"] = abs(again.forward_backward() - first)
        if report["repeat"] > precision.loss * abs(first):
            raise Failed(f"the same seed gave a first loss that differs by {report['repeat']:.2e}")


def backend(setting: Setting) -> Any:
    """Force the SDPA backend that the setting names, if it names one."""
    if setting.sdpa_backend is None:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not hasattr(SDPBackend, setting.sdpa_backend):
        raise NotRun(f"torch {torch.__version__} has no SDPA backend {setting.sdpa_backend}")
    return sdpa_kernel([getattr(SDPBackend, setting.sdpa_backend)])


class Trainee:
    """The tiny model with its batch and optimizer, at the start of its training."""

    def __init__(self, setting: Setting, precision: Precision, layout: str, mode: str, device: torch.device) -> None:
        self.setting, self.precision, self.device, self.mode = setting, precision, device, mode
        self.weights = getattr(torch, precision.weights)
        self.autocast = getattr(torch, precision.autocast) if precision.autocast else None
        built = model.build(setting, model.TINY, self.weights, device)
        self.model = _with_mode(built, mode).train()
        self.batch = layouts.batch(layout, device, self.autocast or self.weights)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = (
            torch.optim.AdamW(parameters, lr=4e-3, weight_decay=0.0)
            if precision.optimizer == "adamw"
            else torch.optim.SGD(parameters, lr=0.2)
        )
        # 2**12 rather than the default 2**16: the very first step must not be one that the scaler skips
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=precision.scaled)

    def resolved(self) -> dict[str, str]:
        """What transformers made of the setting."""
        return {
            "implementation": str(self.model.config._attn_implementation),
            "function": model.bound_function(self.model),
        }

    def forward_backward(self) -> float:
        """One forward and backward pass, gradients unscaled; returns the loss."""
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            logits = self.model(**self.batch.inputs, use_cache=self.mode == "use-cache").logits
        loss = functional.cross_entropy(
            logits.float().flatten(0, 1), self.batch.targets.flatten(), ignore_index=data.IGNORED
        )
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        return loss.item()

    def remaining_steps(self, count: int) -> list[float]:
        """Take the optimizer's step for the gradients at hand, then count - 1 whole steps and a last loss."""
        losses = []
        for _ in range(count):
            if self.precision.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.precision.clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            losses.append(self.forward_backward())
        return losses

    def errors(self, loss: float, *, seams: bool = True) -> dict[str, Any]:
        """How far loss and gradients lie from the reference's."""
        parameters = {model.plain_name(n): p for n, p in self.model.named_parameters()}
        key = (self.mode == "lora", self.weights, self.batch.lengths, seams)
        if key not in _references:  # the weights are the same for every setting
            rows = data.sequences(self.batch.lengths)
            _references[key] = reference.losses_and_gradients(parameters, rows, model.TINY, seams=seams)
        expected_loss, expected = _references[key]
        return reference.distances(parameters, loss, expected_loss, expected)


def _with_mode(built: Any, mode: str) -> Any:
    if mode == "lora":
        try:
            return model.add_lora(built)
        except ImportError as error:
            raise NotRun(f"peft cannot be imported: {error}") from error
    if mode == "checkpointing":
        built.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if mode == "use-cache":
        built.config.use_cache = True
    return built


_references: dict[tuple[Any, ...], tuple[float, reference.Weights]] = {}


def _demand_setting(setting: Setting, trainee: Trainee, names: list[str], device: torch.device) -> None:
    implementation = trainee.resolved()["implementation"]
    if implementation != setting.implementation:
        raise Failed(f"kernel-swapped: {setting.implementation} was asked for, {implementation} resolved")
    fault = kernel_fault(setting, names, on_gpu=device.type == "cuda")
    if fault is not None:
        raise Failed(f"kernel-swapped: {fault}")


def within(precision: Precision, errors: dict[str, Any]) -> bool:
    """Whether a first step is as near to the reference as its precision allows; NaN is not."""
    return bool(errors["loss"] <= precision.loss and errors["gradient"] <= precision.gradient)


def _demand_bounds(trainee: Trainee, loss: float, errors: dict[str, Any]) -> None:
    precision = trainee.precision
    if within(precision, errors):
        return
    said = (
        f"the first step's loss is off by {errors['loss']:.1e} ({precision.loss:.0e} is allowed),"
        f" the gradient of {errors['gradient_of']} by {errors['gradient']:.1e} ({precision.gradient:.0e})"
    )
    if trainee.batch.packed and within(precision, trainee.errors(loss, seams=False)):
        raise Failed(f"leaks-across-seams: attention does not stop between packed sequences; {said}")
    raise Failed(said)


def demand_learning(losses: list[float]) -> None:
    """The losses of a training fall and stay finite; raises ``Failed``."""
    if not all(map(math.isfinite, losses)):
        raise Failed("a loss is not finite")
    if losses[-1] > LEARNED * losses[0]:
        raise Failed(f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f} only")
