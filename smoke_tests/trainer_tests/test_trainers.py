"""A trainer's own way of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

TOPIC = "trainers"


def test_trains(check: Check, conclude: Any) -> None:
    conclude(check)
