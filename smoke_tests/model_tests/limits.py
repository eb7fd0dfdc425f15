"""How far a step may lie from the reference, by precision. docs/decisions/0901 has the measurements behind the numbers.

The model's gradients are held to a bound that is measured in the same run: the error of the same model in the same
precision with attention that is right, one sequence at a time, parameter by parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

OVER_RIGHT = 4.0
"""How many times the error of right attention a parameter's gradient may have; right kernels reached 1.7."""


@dataclass(frozen=True)
class Limit:
    """Bounds of one precision."""

    gradient: float
    """An error of a gradient that is never too large, however small that of right attention is."""
    loss: float
    """The same for the loss."""
    gain: float
    """The largest signed share of a kernel's error along a direction (``paired``)."""
    size: float
    """The largest size of a kernel's own error."""
    hopeless: float
    """An error of right attention from which on the model itself, and not attention, is at fault."""


LIMITS = {
    "fp32": Limit(gradient=2e-5, loss=1e-6, gain=1e-5, size=2e-5, hopeless=1e-3),
    "bf16": Limit(gradient=2e-2, loss=5e-4, gain=4e-3, size=3e-2, hopeless=0.5),
    "fp16": Limit(gradient=3e-3, loss=6e-5, gain=2e-3, size=5e-3, hopeless=0.2),
}
