"""The process in which checks run: one JSON request a line in, one JSON result a line out.

It may be killed at any time (a hang, a segfault); the runner starts another. What libraries print goes to
stdout and stderr, the answers to a pipe of their own. ``python -m smoke_tests.worker FD``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

TOPICS = {
    "training": "smoke_tests.training",
    "environment": "smoke_tests.environment",
}


def main() -> None:
    """Serve requests until stdin ends."""
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            result = perform(json.loads(line))
            answers.write(json.dumps(result) + "\n")
            answers.flush()
            if result["outcome"] == "fail":
                return  # a failed kernel may have poisoned the process: the next check gets a fresh one


def perform(check: dict[str, Any]) -> dict[str, Any]:
    """Run one check and return what came of it."""
    from smoke_tests import outcomes

    report: dict[str, Any] = {"outcome": outcomes.PASS, "reason": ""}
    started = time.monotonic()
    try:
        import importlib

        module = importlib.import_module(TOPICS[check["topic"]])
        _start_measuring()
        module.run(check, report)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is an outcome
        traceback.print_exc()
        report.update(outcomes.from_exception(error))
    report["seconds"] = round(time.monotonic() - started, 3)
    report["peak_memory"] = _peak_memory()
    return report


def _start_measuring() -> None:
    import torch

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
