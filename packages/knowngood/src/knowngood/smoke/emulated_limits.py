"""A plugin of pytest that gives the smoke suite more time: for a run in which QEMU emulates the processor.

It is copied into the container beside the suite, whose own files stay as they are, and imports nothing of this program.
"""

from __future__ import annotations

import importlib
from typing import Any

FACTOR = 15.0
"""How much longer than on a processor of its own anything may take; importing torch took 20 times as long."""


def pytest_configure() -> None:
    """Multiply the time that a worker of the suite may take to start, and to answer."""
    runner: Any = importlib.import_module("smoke_tests.runner")
    run = runner.Runner.run

    def run_with_patience(self: Any, request: dict[str, Any], timeout: float) -> Any:
        return run(self, request, timeout * FACTOR)

    runner.START_TIMEOUT *= FACTOR
    runner.Runner.run = run_with_patience
