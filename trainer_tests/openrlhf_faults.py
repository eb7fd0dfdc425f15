"""Faults that are put into OpenRLHF's path on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def put_into_model(fault: str, built: Any) -> None:
    """Put a fault into a model before the optimizer is made."""
    if fault in MODEL_FAULTS:
        MODEL_FAULTS[fault](built)


def put_into_trainer(fault: str, trainer: Any) -> None:
    """Put a fault into a trainer that has not trained."""
    if fault in TRAINER_FAULTS:
        TRAINER_FAULTS[fault](trainer)


MODEL_FAULTS: dict[str, Callable[[Any], None]] = {}
TRAINER_FAULTS: dict[str, Callable[[Any], None]] = {}
