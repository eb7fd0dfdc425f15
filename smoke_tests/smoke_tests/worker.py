"""The process in which checks run: one JSON request a line in, JSON lines out.

The first line out says that the process is ready; then each check gives a line for each thing it finds out
(``{"known": ...}``, all that is left of a check that hangs or crashes) and one with its outcome.

It may be killed at any time (a hang, a segfault); the runner starts another. What libraries print goes to
stdout and stderr, the answers to a pipe of their own. ``python -m smoke_tests.worker FD``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TOPICS = {
    "training": "smoke_tests.training",
    "environment": "smoke_tests.environment",
    "mutant": "smoke_tests.mutants",
    "toolchain": "smoke_tests.toolchain",
    "triton": "smoke_tests.rotary",
    "extras": "smoke_tests.extras",
    "framework": "smoke_tests.frameworks",
    "speed": "smoke_tests.speed",
    "fault": "smoke_tests.faults",
}


def main() -> None:
    """Serve requests until stdin ends."""
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:

        def tell(document: dict[str, Any]) -> None:
            answers.write(json.dumps(document) + "\n")
            answers.flush()

        with contextlib.suppress(Exception):  # the check named environment says what is wrong
            import transformers  # noqa: F401 - and torch with it, which takes its time on a cold disk
        tell({"ready": True})
        for line in sys.stdin:
            result = perform(json.loads(line), tell)
            tell(result)
            if result["outcome"] == "fail" and result.get("exception"):
                return  # an error may have poisoned the process: the next check gets a fresh one


class _Told(dict):
    """A report whose every new entry is told at once."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.tell = tell

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.tell({"known": {name: value}})


def perform(check: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run one check and return what came of it."""
    from smoke_tests import outcomes

    report = _Told(tell)
    ended: dict[str, Any] = {"outcome": outcomes.PASS, "reason": ""}
    started = time.monotonic()
    try:
        import importlib

        module = importlib.import_module(TOPICS[check["topic"]])
        _start_measuring()
        module.run(check, report)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is an outcome
        traceback.print_exc()
        ended = outcomes.from_exception(error)
    seconds = round(time.monotonic() - started, 3)
    return {**report, **ended, "seconds": seconds, "peak_memory": _peak_memory()}


def _start_measuring() -> None:
    import torch

    # transformers before 4.5x sets the model's dtype as the default and, when it refuses the setting, leaves it set.
    torch.set_default_dtype(torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()  # else its limit on recompilations is met after a few shapes


def _peak_memory() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    try:
        return torch.cuda.max_memory_allocated()
    except RuntimeError:  # the context is lost
        return None


if __name__ == "__main__":
    main()
