"""Time and memory of a training step under each setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

TOPIC = "speed"


def test_is_measured(check: Check, conclude: Any) -> None:
    conclude(check)
