"""One training check: build, first step against the reference, kernel proof, more steps, the same again."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import transformers
from torch.nn import functional

from smoke_tests import data, layouts, model, profiling, reference
from smoke_tests import optimizer_reference as steps
from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.precision import PRECISIONS, Precision
from smoke_tests.settings import SETTINGS, Setting, kernel_fault

LEARNED = 0.9  # the last loss over the first, at most
STEPS, WARM_UP = 5, 1
RATE, DECAY, SGD_RATE = 1e-3, 0.1, 0.2


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
    """The tiny model with its batch and optimizer, at the start of its training; ``seed`` is of weights and rows."""

    def __init__(  # noqa: PLR0913 - the parts of a check
        self, setting: Setting, precision: Precision, layout: str, mode: str, device: torch.device, *, seed: int = 0
    ) -> None:
        self.setting, self.precision, self.device, self.mode = setting, precision, device, mode
        self.weights = getattr(torch, precision.weights)
        self.autocast = getattr(torch, precision.autocast) if precision.autocast else None
        built = model.build(setting, model.TINY, self.weights, device)
        self.model = _with_mode(built, mode).train()
        self.restart(layout, seed)

    def restart(self, layout: str, seed: int = 0) -> None:
        """Go back to the start of a training, with the rows of a seed; who wants other weights sets them."""
        self.batch = layouts.batch(layout, self.device, self.autocast or self.weights, seed)
        self.rows = data.sequences(self.batch.lengths, seed)
        self.recipe = recipe_of(self.precision)
        self.optimizer = _optimizer(self.trained(), self.precision)
        self.scheduler = transformers.get_scheduler(self.precision.schedule, self.optimizer, WARM_UP, STEPS + 1)
        # 2**12 rather than the default 2**16: the very first step must not be one that the scaler skips. After two
        # steps the scale is so large that the third is skipped, and then what it was.
        self.scaler = torch.amp.GradScaler(
            self.device.type,
            init_scale=2.0**12,
            growth_factor=2.0**24,
            backoff_factor=2.0**-24,
            growth_interval=2,
            enabled=self.precision.scaled,
        )
        self.model.zero_grad()

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, by their plain names."""
        return {model.plain_name(name): p for name, p in self.model.named_parameters() if p.requires_grad}

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

    def step(self) -> None:
        """Take the optimizer's step for the gradients at hand, and the schedule's where it was taken."""
        if self.precision.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.precision.clip)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:
            self.scheduler.step()
        self.optimizer.zero_grad()

    def moments(self, part: str) -> dict[str, torch.Tensor]:
        """AdamW's first (``exp_avg``) or second (``exp_avg_sq``) moments as they are."""
        states = {name: self.optimizer.state.get(p, {}) for name, p in self.trained().items()}
        return {name: state[part] for name, state in states.items() if part in state}

    def expected(self, *, seams: bool = True) -> tuple[float, reference.Weights]:
        """The reference's loss and gradients at the weights as they are."""
        parameters = {model.plain_name(n): p for n, p in self.model.named_parameters()}
        return reference.losses_and_gradients(parameters, self.rows, model.TINY, seams=seams, device=self.device)

    def errors(self, loss: float, *, seams: bool = True) -> dict[str, Any]:
        """How far loss and gradients lie from the reference's."""
        return reference.distances(self.trained(), loss, *self.expected(seams=seams))


def recipe_of(precision: Precision) -> steps.Recipe:
    """How the trainings of a precision take their steps, for the reference."""
    if precision.optimizer == "sgd":
        return steps.Recipe(lambda _name: steps.Group(SGD_RATE), optimizer="sgd")
    schedules = {
        "constant": lambda _step: 1.0,
        "linear": steps.linear_schedule(WARM_UP, STEPS + 1),
        "cosine": steps.cosine_schedule(WARM_UP, STEPS + 1),
    }
    return steps.Recipe(steps.decay_all_but(RATE, DECAY), schedules[precision.schedule], precision.clip)


def _optimizer(trained: dict[str, torch.nn.Parameter], precision: Precision) -> torch.optim.Optimizer:
    """torch's own, with a group for what weight decay leaves alone, as trainers make it."""
    if precision.optimizer == "sgd":
        return torch.optim.SGD(trained.values(), lr=SGD_RATE)
    plain = [parameter for name, parameter in trained.items() if steps.is_bias_or_norm(name)]
    decayed = [parameter for name, parameter in trained.items() if not steps.is_bias_or_norm(name)]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=RATE)


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
