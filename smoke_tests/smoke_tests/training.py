"""One training check: build, kernel proof, every step of a short training against the reference, the same again."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import transformers
from torch.nn import functional

from smoke_tests import data, gradient_shares, layouts, model, profiling, reference
from smoke_tests import optimizer_reference as steps
from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.precision import PRECISIONS, Precision
from smoke_tests.settings import SETTINGS, Setting, kernel_fault

LEARNED = 0.9  # the last loss over the first, at most
STEPS, WARM_UP = 5, 1
SKIPPED = [3]  # the steps at which the scaled gradients of fp16 overflow
SAME = 1e-9  # how far the reference on a GPU may be from the one on the CPU
RATE, ADAPTERS_RATE, SGD_RATE, DECAY = 1e-3, 8e-3, 0.2, 0.1


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
        demand_right(trainee, first, report["errors"])
        follow(trainee, first, report)
        demand_learning(report["losses"])
        again = Trainee(setting, precision, check["layout"], check["mode"], device)
        report["repeat"] = abs(again.forward_backward() - first)
        if report["repeat"] > precision.loss * abs(first):
            raise Failed(f"the same seed gave a first loss that differs by {report['repeat']:.2e}")


def follow(trainee: Trainee, first: float, report: dict[str, Any]) -> None:
    """Take the steps of a training whose first loss and gradients are right, and compare after each of them.

    Weights and moments are compared with the reference's, which takes the same steps with the training's own gradients;
    the next loss and gradients with those that the reference has at these weights. So nothing adds up over the steps
    but the rounding of weights, and a step that is off is told from gradients that are.
    """
    expected = steps.OptimizerReference(trainee.trained(), trainee.recipe, trainee.weights)
    losses, skipped, worst = [first], [], {"loss": 0.0, "share": 0.0, "size": 0.0, "optimizer": 0.0}
    report["losses"], report["steps"] = losses, {"taken": 0, "skipped": skipped, "worst": worst}
    for number in range(1, STEPS + 1):
        gradients = {name: p.grad.detach().clone() for name, p in trainee.trained().items() if p.grad is not None}
        if not expected.step(gradients):
            skipped.append(number)
        trainee.step()
        _demand_step(trainee, expected, number, worst)
        report["steps"]["taken"] = expected.count
        losses.append(trainee.forward_backward())
        if trainee.overflows():
            _demand_loss(trainee, losses[-1], number + 1)
            continue
        errors = trainee.errors(losses[-1])
        worst["loss"] = max(worst["loss"], errors["loss"])
        for part in ("share", "size"):
            worst[part] = max([worst[part], *(abs(own[part]) for own in errors["shares"].values())])
        demand_right(trainee, losses[-1], errors, number + 1)
    if skipped != (SKIPPED if trainee.precision.scaled else []):
        raise Failed(f"wrong-skip: the loss scaler skipped the steps {skipped}, {SKIPPED} overflow")


def _demand_step(trainee: Trainee, expected: steps.OptimizerReference, number: int, worst: dict[str, float]) -> None:
    """Weights and moments after a step are the reference's but for their rounding."""
    found = expected.distances(trainee.trained(), trainee.moments("exp_avg"), trainee.moments("exp_avg_sq"))
    off = max(found, key=lambda distance: distance.over)
    worst["optimizer"] = max(worst["optimizer"], off.over)
    if not off.over <= 1.0:
        raise Failed(
            f"wrong-step: step {number}: the {off.part} of {off.name} is off by {off.error:.1e}"
            f" ({off.allowed:.1e} is allowed, it {'moved by' if off.part == 'weight' else 'is'} {off.size:.1e})"
        )


def _demand_loss(trainee: Trainee, loss: float, number: int) -> None:
    """The loss of a step whose gradients overflow, as they should, is right."""
    wanted = trainee.expected()[0]
    errors = {"loss": abs(loss - wanted) / wanted, "gradient": 0.0}
    if fault := wrong(trainee.precision, errors, number):
        raise Failed(fault)


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
        self.rate, self.steps_taken = (ADAPTERS_RATE if self.mode == "lora" else RATE), 0
        self.recipe = recipe_of(self.precision, self.rate)
        self.optimizer = _optimizer(self.trained(), self.precision, self.rate)
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
        self.steps_taken += 1

    def moments(self, part: str) -> dict[str, torch.Tensor]:
        """AdamW's first (``exp_avg``) or second (``exp_avg_sq``) moments as they are."""
        states = {name: self.optimizer.state.get(p, {}) for name, p in self.trained().items()}
        return {name: state[part] for name, state in states.items() if part in state}

    def overflows(self) -> bool:
        """Whether the scaled gradients left the range of their dtype, so that the scaler will skip the step."""
        finite = (p.grad.isfinite().all() for p in self.trained().values() if p.grad is not None)
        return self.precision.scaled and not bool(torch.stack([*finite]).all())

    def expected(self, *, seams: bool = True, device: Any = None) -> tuple[float, reference.Weights]:
        """The reference's loss and gradients at the weights as they are, computed on the model's device."""
        parameters = {model.plain_name(n): p for n, p in self.model.named_parameters()}
        where = device or self.device
        return reference.losses_and_gradients(parameters, self.rows, model.TINY, seams=seams, device=where)

    def errors(self, loss: float, *, seams: bool = True) -> dict[str, Any]:
        """How far loss and gradients lie from the reference's."""
        if self.steps_taken:
            return reference.distances(self.trained(), loss, *self.expected(seams=seams))
        key = (self.mode == "lora", self.weights, tuple(map(tuple, self.rows)), seams)
        if key not in _references:  # the first weights are the same for every setting
            _references[key] = self.expected(seams=seams, device="cpu")
            if self.device.type != "cpu":
                _demand_same(_references[key], self.expected(seams=seams))
        return reference.distances(self.trained(), loss, *_references[key])


def recipe_of(precision: Precision, rate: float) -> steps.Recipe:
    """How the trainings of a precision take their steps, for the reference."""
    if precision.optimizer == "sgd":
        return steps.Recipe(lambda _name: steps.Group(SGD_RATE), optimizer="sgd")
    schedules = {
        "constant": lambda _step: 1.0,
        "linear": steps.linear_schedule(WARM_UP, STEPS + 1),
        "cosine": steps.cosine_schedule(WARM_UP, STEPS + 1),
    }
    return steps.Recipe(steps.decay_all_but(rate, DECAY), schedules[precision.schedule], precision.clip)


def _optimizer(trained: dict[str, torch.nn.Parameter], precision: Precision, rate: float) -> torch.optim.Optimizer:
    """Make torch's own, with a group for what weight decay leaves alone, as trainers make it."""
    if precision.optimizer == "sgd":
        return torch.optim.SGD(trained.values(), lr=SGD_RATE)
    plain = [parameter for name, parameter in trained.items() if steps.is_bias_or_norm(name)]
    decayed = [parameter for name, parameter in trained.items() if not steps.is_bias_or_norm(name)]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate)


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


def _demand_same(one: tuple[float, reference.Weights], other: tuple[float, reference.Weights]) -> None:
    """The reference on a GPU is the one on the CPU, so that it may compute there from the second step on."""
    for name, gradient in one[1].items():
        distance = (other[1][name].cpu() - gradient).norm() / gradient.norm()
        if not distance <= SAME:
            raise Failed(f"the reference's gradient of {name} on this GPU is off by {distance:.1e} from the CPU's")


def _demand_setting(setting: Setting, trainee: Trainee, names: list[str], device: torch.device) -> None:
    implementation = trainee.resolved()["implementation"]
    if implementation != setting.implementation:
        raise Failed(f"kernel-swapped: {setting.implementation} was asked for, {implementation} resolved")
    fault = kernel_fault(setting, names, on_gpu=device.type == "cuda")
    if fault is not None:
        raise Failed(f"kernel-swapped: {fault}")


def within(precision: Precision, errors: dict[str, Any], number: int = 1) -> bool:
    """Whether a step is as near to the reference as its precision allows; NaN is not."""
    return not wrong(precision, errors, number)


def wrong(precision: Precision, errors: dict[str, Any], number: int = 1) -> str:
    """What of a step's loss and gradients is further off than its precision allows; empty if nothing is."""
    allowed = precision.loss if number == 1 else precision.later_loss
    said = []
    if not errors["loss"] <= allowed:
        said.append(f"wrong-loss: step {number}: off by {errors['loss']:.1e} ({allowed:.0e} is allowed)")
    if "shares" in errors:
        if faults := gradient_shares.faults_in(errors["shares"], precision.name, number):
            said.append(f"wrong-gradient: step {number}: {', '.join(faults)}")
    elif not errors["gradient"] <= precision.gradient:
        size, name = errors["gradient"], errors["gradient_of"]
        said.append(f"wrong-gradient: step {number}: {name} by {size:.1e} ({precision.gradient:.0e} is allowed)")
    return "; ".join(said)


def demand_right(trainee: Trainee, loss: float, errors: dict[str, Any], number: int = 1) -> None:
    """A step's loss and gradients are the reference's; raises ``Failed``."""
    fault = wrong(trainee.precision, errors, number)
    if fault and trainee.batch.packed and within(trainee.precision, trainee.errors(loss, seams=False), number):
        raise Failed(f"leaks-across-seams: attention does not stop between packed sequences; {fault}")
    if fault:
        raise Failed(fault)


def demand_learning(losses: list[float]) -> None:
    """The losses of a training fall and stay finite; raises ``Failed``."""
    if not all(map(math.isfinite, losses)):
        raise Failed("a loss is not finite")
    if losses[-1] > LEARNED * losses[0]:
        raise Failed(f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f} only")
