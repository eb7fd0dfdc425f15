"""A Triton kernel with an autograd function of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

TOPIC = "triton"


def test_rotates(check: Check, conclude: Any) -> None:
    conclude(check)
