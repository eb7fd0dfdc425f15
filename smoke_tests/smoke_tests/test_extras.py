"""What flash-attn ships beside attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

TOPIC = "extras"


def test_works(check: Check, conclude: Any) -> None:
    conclude(check)
