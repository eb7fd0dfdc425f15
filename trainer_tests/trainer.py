"""One check of a trainer: which module answers for it, and whether the trainer is here at all."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from smoke_tests.outcomes import NotRun

MODULES = {
    "trl-sft": ("trl", "smoke_tests.trainers.trl_sft"),
    "trl-dpo": ("trl", "smoke_tests.trainers.trl_dpo"),
    "trl-grpo": ("trl", "smoke_tests.trainers.trl_grpo"),
}
"""The first part of a check's detail -> the distribution of the trainer, and the module with its check."""


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Run the check; ``NotRun`` where the trainer is not installed."""
    name, module = MODULES[check["detail"].partition("/")[0]]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise NotRun(f"{name} is not installed") from None
    report["framework"] = f"{name} {version}"
    importlib.import_module(module).run(check, report)
