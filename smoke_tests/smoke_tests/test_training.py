"""The tiny Qwen2 trains under each attention setting, in each precision, layout and mode that the catalogue
lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

TOPIC = "training"


def test_trains(check: Check, conclude: Any) -> None:
    conclude(check)
