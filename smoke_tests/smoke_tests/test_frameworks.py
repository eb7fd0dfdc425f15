"""A framework's own way of training Qwen2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

TOPIC = "frameworks"


def test_trains(check: Check, conclude: Any) -> None:
    conclude(check)
