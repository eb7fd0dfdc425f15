"""A worker that hangs, crashes or eats the memory is a failed check and nothing more; only with --faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

TOPIC = "faults"


def test_is_survived(check: Check, conclude: Any) -> None:
    conclude(check)
