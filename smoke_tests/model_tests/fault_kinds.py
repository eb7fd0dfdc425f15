"""Faults that are put into the attention function on purpose: each must be noticed, in every precision.

They stand between the model and the kernel, as a wrong kernel would: what the model hands over is right, and what
comes back is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from smoke_tests.outcomes import Failed

if TYPE_CHECKING:
    from collections.abc import Callable


class _Shortened(torch.autograd.Function):
    """The identity, whose gradient comes back multiplied."""

    @staticmethod
    def forward(context: Any, states: torch.Tensor, factor: float) -> torch.Tensor:
        """Return the states."""
        context.factor = factor
        return states.view_as(states)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient times the factor."""
        return gradient * context.factor, None


def bend_scale(factor: float) -> Callable[[Callable], Callable]:
    """A kernel whose softmax scale is off by a factor."""

    def wrap(function: Callable) -> Callable:
        def bent(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
            scale = named.get("scaling")
            named["scaling"] = (query.shape[-1] ** -0.5 if scale is None else scale) * factor
            return function(module, query, key, value, *rest, **named)

        return bent

    return wrap


def shorten_gradient(factor: float, place: int) -> Callable[[Callable], Callable]:
    """A kernel whose gradient of the queries (place 0), keys (1) or values (2) is off by a factor."""

    def wrap(function: Callable) -> Callable:
        def short(module: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
            states = [query, key, value]
            states[place] = _Shortened.apply(states[place], factor)
            return function(module, *states, *rest, **named)

        return short

    return wrap


KERNEL_FAULTS = {
    "scale-1-percent": bend_scale(1.01),
    "scale-3-percent": bend_scale(1.03),
    "query-gradient-1-percent": shorten_gradient(0.99, 0),
    "query-gradient-5-percent": shorten_gradient(0.95, 0),
    "key-gradient-1-percent": shorten_gradient(0.99, 1),
    "value-gradient-1-percent": shorten_gradient(0.99, 2),
}


def demand_noticed(check: dict[str, Any], report: dict[str, Any], judge: Callable[..., None]) -> None:
    """Pass if the fault that the check names is noticed as a wrong number."""
    try:
        judge(check, report, fault=KERNEL_FAULTS[check["detail"]])
    except Failed as error:
        if not str(error).startswith("silently-wrong"):
            raise
        report["noticed"] = str(error)
        return
    raise Failed(f"the fault went unnoticed: {report['paired']}")
