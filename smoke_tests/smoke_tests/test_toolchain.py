"""The compilers that Triton and Inductor call at run time work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

TOPIC = "toolchain"


def test_compiles(check: Check, conclude: Any) -> None:
    conclude(check)
