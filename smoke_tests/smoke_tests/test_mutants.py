"""A fault put in on purpose must fail the comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

TOPIC = "mutants"


def test_is_noticed(check: Check, conclude: Any) -> None:
    conclude(check)
