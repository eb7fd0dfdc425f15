"""One check of a trainer: which module answers for it, and whether the trainer is here at all."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import traceback
from typing import Any

from smoke_tests.trainers import checks

from smoke_tests import outcomes
from smoke_tests.outcomes import Elsewhere, Failed, NotRun


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Run the check; ``NotRun`` where the trainer is not installed, ``Elsewhere`` where it refuses in words it has."""
    subject = check["detail"].partition("/")[0]
    module = next(module for module in checks.lists() if subject in module.MODULES)
    try:
        version = importlib.metadata.version(module.DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise NotRun(f"{module.DISTRIBUTION} is not installed") from None
    report["framework"] = f"{module.DISTRIBUTION} {version}"
    try:
        importlib.import_module(f"smoke_tests.trainers.{module.MODULES[subject]}").run(check, report)
    except (Failed, NotRun, Elsewhere):
        raise
    except Exception as error:
        _recognise(error, module.REFUSALS)
        raise


def _recognise(error: Exception, refusals: tuple[Any, ...]) -> None:
    """Raise ``Elsewhere`` with the outcome of the refusal that an error is, if it is one of these."""
    text = f"{type(error).__name__}: {error}"
    for refusal in refusals:
        if re.search(refusal.pattern, text, re.DOTALL):
            traceback.print_exc()
            seen = outcomes.from_exception(error)
            raise Elsewhere({**seen, "outcome": refusal.outcome, "reason": refusal.reason}) from error
