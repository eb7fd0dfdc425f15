"""Faults that are put into the attention function on purpose: each must be noticed, in every precision.

They stand between the model and the kernel, as a wrong kernel would: what the model hands over is right, and what
comes back is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smoke_tests.library_faults import scale_gradient
from smoke_tests.outcomes import demand_noticed

if TYPE_CHECKING:
    from collections.abc import Callable


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
            states[place] = scale_gradient(states[place], factor)
            return function(module, *states, *rest, **named)

        return short

    return wrap


KERNEL_FAULTS = {
    "scale-1-percent": (bend_scale(1.01), "the softmax scale is off"),
    "scale-3-percent": (bend_scale(1.03), "the softmax scale is off"),
    "query-gradient-1-percent": (shorten_gradient(0.99, 0), "attention's query gradient is off"),
    "query-gradient-5-percent": (shorten_gradient(0.95, 0), "attention's query gradient is off"),
    "key-gradient-1-percent": (shorten_gradient(0.99, 1), "attention's key gradient is off"),
    "value-gradient-1-percent": (shorten_gradient(0.99, 2), "attention's value gradient is off"),
}
"""Each fault, and what must be said of it."""


def try_fault(check: dict[str, Any], report: dict[str, Any], judge: Callable[..., None]) -> None:
    """Pass if the fault that the check names is noticed as what it is."""
    fault, own_reason = KERNEL_FAULTS[check["detail"]]
    report["noticed"] = demand_noticed(
        lambda: judge(check, report, fault=fault), rf"^silently-wrong: .*{own_reason} by"
    )
