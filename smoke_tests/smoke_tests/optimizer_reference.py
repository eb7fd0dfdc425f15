"""The reference of optimizer steps: AdamW and SGD, schedules, clipping and a scaler's skip by their formulas, in fp64.

It shares no line with ``torch.optim``. Given a training's own gradients of each step, the weights and moments after it
follow but for rounding, whatever the precision in which the gradients were computed: so a step is held to a bound that
is derived from the rounding of its dtype (``Distance.allowed``), and a wrong rate, decay, moment or schedule shows
where the loss falls all the same. AdamW: https://arxiv.org/abs/1711.05101, algorithm 2, epsilon outside of the root.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable

import torch

Weights = dict[str, torch.Tensor]
Schedule = Callable[[int], float]
"""The factor of the rate at an optimizer step, of which 0 is the first."""

ROUNDINGS = 128
"""How many roundings of the dtype an update and a moment may be off for each step. AdamW has about 12. The norm by
which gradients are clipped is a sum of thousands of numbers in fp32, and moves all of them alike: on a CPU a second
moment was seen 54 off (docs/decisions/0205)."""
SELDOM = 1 / 4
"""The part of a last place that weights of half precision may be off, by the root of their mean square, each step."""


@dataclass(frozen=True)
class Group:
    """The numbers of the optimizer for some parameters; ``decay`` is decoupled from the gradient."""

    rate: float
    decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass(frozen=True)
class Recipe:
    """How a training takes its steps: the group of each parameter's name, and what is the same for all of them."""

    group_of: Callable[[str], Group]
    schedule: Schedule = lambda step: 1.0  # noqa: ARG005
    clip: float | None = None
    """The largest global norm of the gradients."""
    optimizer: str = "adamw"


def is_bias_or_norm(name: str) -> bool:
    """Whether trainers leave a parameter without weight decay by default."""
    return name.endswith("bias") or "norm" in name


def decay_all_but(rate: float, decay: float, excepted: Callable[[str], bool] = is_bias_or_norm) -> Callable:
    """Two groups: ``decay`` for all parameters but those whose names are ``excepted``, none for these."""
    decayed, plain = Group(rate, decay), Group(rate)
    return lambda name: plain if excepted(name) else decayed


def linear_schedule(warm_up: int, steps: int) -> Schedule:
    """Rise from 0 in ``warm_up`` steps, then fall to 0 at ``steps`` (transformers' ``linear``)."""
    return lambda step: step / warm_up if step < warm_up else max(0.0, (steps - step) / max(1, steps - warm_up))


def cosine_schedule(warm_up: int, steps: int) -> Schedule:
    """Rise from 0 in ``warm_up`` steps, then fall to 0 at ``steps`` by half a cosine (transformers' ``cosine``)."""

    def factor(step: int) -> float:
        if step < warm_up:
            return step / warm_up
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))))

    return factor


def constant_schedule(warm_up: int) -> Schedule:
    """Rise from 0 in ``warm_up`` steps, then stay (transformers' ``constant_with_warmup``)."""
    return lambda step: min(1.0, step / max(1, warm_up)) if warm_up else 1.0


def accumulate(parts: list[tuple[float, Weights]]) -> Weights:
    """The gradients of a step that has several batches: each batch's own times its share in the step's loss.

    Of a mean over all tokens the share is the batch's part of the tokens, of a mean of means one over their number.
    """
    names = dict.fromkeys(name for _, gradients in parts for name in gradients)
    return {
        name: sum((share * gradients[name].double() for share, gradients in parts if name in gradients), start=0.0)
        for name in names
    }


def clip(gradients: Weights, largest: float | None) -> Weights:
    """Scale the gradients down where the norm over all is above ``largest``, as ``clip_grad_norm_`` does."""
    if largest is None:
        return gradients
    total = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients.values()))
    factor = min(1.0, largest / (total + 1e-6))
    return {name: gradient.double() * factor for name, gradient in gradients.items()}


@dataclass(frozen=True)
class Distance:
    """How far one tensor lies from the reference's, as a norm, and how far it may."""

    part: str  # weight, first moment, second moment
    name: str
    error: float
    allowed: float
    size: float
    """The norm of the reference's last update (of a weight), or of the moment itself."""

    @property
    def over(self) -> float:
        """The error over what is allowed; infinite where it is not a number."""
        ratio = self.error / self.allowed if self.allowed else (0.0 if self.error == 0 else math.inf)
        return ratio if ratio == ratio else math.inf  # noqa: PLR0124 - NaN is the worst


class OptimizerReference:
    """The weights and moments of a training in fp64, moved by one step after another.

    ``dtype`` is the one in which the training holds its weights. Weights of half precision are rounded to it after
    each step, as the training's are: otherwise what a step changes by less than half of a last place would be lost in
    one and not in the other.
    """

    def __init__(self, weights: Weights, recipe: Recipe, dtype: torch.dtype = torch.float32) -> None:
        self.recipe, self.dtype = recipe, dtype
        self.weights = {name: value.detach().double().clone() for name, value in weights.items()}
        self.first: Weights = {}
        self.second: Weights = {}
        self.count = 0  # steps that were taken
        self._steps_of: dict[str, int] = {}  # of each parameter: one without a gradient is left as it is
        self._updates: dict[str, float] = {}  # the norms of all updates of a weight, added up
        self._last: dict[str, float] = {}
        self._sizes: dict[str, float] = {}  # what the first moment would be if no two gradients cancelled

    def step(self, gradients: Weights) -> bool:
        """Take one step with the gradients of a whole batch, before they are clipped.

        Returns False, and leaves everything as it is, where one is not finite: a loss scaler skips such a step, and the
        schedule stays where it is (as accelerate has it).
        """
        if not all(bool(gradient.isfinite().all()) for gradient in gradients.values()):
            return False
        factor = self.recipe.schedule(self.count)
        self.count += 1
        for name, gradient in clip(gradients, self.recipe.clip).items():
            self._move(name, gradient.double().to(self.weights[name].device), factor)
        return True

    def _move(self, name: str, gradient: torch.Tensor, factor: float) -> None:
        group, weight = self.recipe.group_of(name), self.weights[name]
        rate = group.rate * factor
        before = weight.clone()
        number = self._steps_of[name] = self._steps_of.get(name, 0) + 1
        if self.recipe.optimizer == "sgd":
            weight -= rate * (gradient + group.decay * weight)
        else:
            slow, slower = group.betas
            first = self.first[name] = slow * self.first.get(name, 0.0) + (1 - slow) * gradient
            second = self.second[name] = slower * self.second.get(name, 0.0) + (1 - slower) * gradient.square()
            unbiased = first / (1 - slow**number)
            root = (second / (1 - slower**number)).sqrt()
            weight -= rate * group.decay * weight
            weight -= rate * unbiased / (root + group.eps)
            self._sizes[name] = slow * self._sizes.get(name, 0.0) + (1 - slow) * gradient.norm().item()
        if self.dtype is not torch.float32:
            weight.copy_(weight.to(self.dtype))
        self._last[name] = (weight - before).norm().item()
        self._updates[name] = self._updates.get(name, 0.0) + self._last[name]

    def distances(self, weights: Weights, first: Weights, second: Weights) -> list[Distance]:
        """How far weights and moments after as many steps lie from these; a tensor that is missing lies infinitely far.

        Every step rounds a weight once, and its update and the moments a few times (``ROUNDINGS``).
        """
        found = []
        for name, expected in self.weights.items():
            size = self._last.get(name, 0.0)
            found.append(Distance("weight", name, _error(weights.get(name), expected), self._allowed(name), size))
        half = ROUNDINGS * max(1, self.count) * torch.finfo(self.dtype).eps / 2
        for name, expected in self.first.items():
            size = self._sizes[name]
            found.append(Distance("first moment", name, _error(first.get(name), expected), half * size, size))
        for name, expected in self.second.items():
            size = expected.norm().item()
            found.append(Distance("second moment", name, _error(second.get(name), expected), half * size, size))
        return found

    def _allowed(self, name: str) -> float:
        """How far rounding may move a weight in the steps so far.

        One of half precision is rounded like the reference's, so that they differ by a last place now and then, where a
        number lies so near to the middle of two that the rounding of fp32 decides.
        """
        half, weight = torch.finfo(self.dtype).eps / 2, self.weights[name]
        if self.dtype is torch.float32:
            return self.count * half * weight.norm().item() + ROUNDINGS * half * self._updates.get(name, 0.0)
        return half * (self.count * SELDOM * weight.norm().item() + 8 * weight.abs().max().item())


def _error(found: torch.Tensor | None, expected: torch.Tensor) -> float:
    if found is None:
        return math.inf
    return (found.detach().double().to(expected.device) - expected).norm().item()
